torch.backends.cuda.cufft_plan_cache.max_size
# %%
torch.backends.cuda.cufft_plan_cache.size
# %%
torch.backends.cuda.cufft_plan_cache.clear()
# %%
torch.backends.cuda.cufft_plan_cache[1].max_size = 10
