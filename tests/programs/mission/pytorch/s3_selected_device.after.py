print(torch.cuda.current_device())
with torch.cuda.device(1):
    print(torch.cuda.current_device())
print(torch.cuda.current_device())
