cache = torch.backends.cuda.cufft_plan_cache
print(cache[0].max_size, cache[1].max_size, cache[torch.device("cuda:1")].max_size)
