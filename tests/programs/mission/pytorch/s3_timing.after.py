empty_ms = elapsed_time_ms
x = torch.ones(2048, 2048, device="cuda")
start_event.record()
x @ x
end_event.record()
torch.cuda.synchronize()
print(type(empty_ms).__name__, 0 <= empty_ms < start_event.elapsed_time(end_event))
