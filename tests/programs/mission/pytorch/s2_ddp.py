#初始化使用nccl后端
torch.distributed.init_process_group(backend="nccl")
#模型并行化,使用多进程,可单机或分布式训练
model=torch.nn.parallel.DistributedDataParallel(model)
