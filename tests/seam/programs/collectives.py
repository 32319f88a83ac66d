"""Two ranks: every collective once; what each saw goes to the JSON file that the argument names (with the rank)."""

import json
import os
import sys
import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
seen = {"backend": dist.get_backend(), "available": dist.is_nccl_available(), "size": dist.get_world_size()}
seen["devices"] = [device.type for device in dist.group.WORLD._device_types]


def c(*values):
    """A float tensor on this rank's device."""
    return torch.tensor(values, device="cuda", dtype=torch.float32)


def record(name, call):
    """Keep what a call returns: tensors as lists, errors as text."""
    try:
        result = call()
    except (RuntimeError, TypeError, ValueError) as error:
        result = f"{type(error).__name__}: {error}"
    if isinstance(result, torch.Tensor):
        assert result.get_device() == rank, result
        result = result.tolist()
    elif isinstance(result, list):
        result = [item.tolist() if isinstance(item, torch.Tensor) else item for item in result]
    seen[name] = result


def into(output, collective, *args, **kwargs):
    """Call a collective that fills its first argument, and return that."""
    collective(output, *args, **kwargs)
    return output


def pair():
    """Send to the other rank and receive from it in one batch."""
    received = c(0)
    operations = [dist.P2POp(dist.isend, c(rank), 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


def one_way(any_source, group=None):
    """Rank 0 sends, rank 1 receives."""
    if rank == 0:
        dist.send(c(7), 1, group=group)
        return "sent"
    received = c(0)
    source = dist.recv(received, None if any_source else 0, group=group)
    assert source == 0
    return received


def objects():
    """The object collectives."""
    gathered = [None, None]
    dist.all_gather_object(gathered, {"rank": rank})
    broadcast = [rank, "x"] if rank == 0 else [None, None]
    dist.broadcast_object_list(broadcast, 0)
    return [gathered, broadcast]


def asynchronous():
    """The host goes on; the stream waits."""
    big = torch.ones(1 << 22, device="cuda")
    work = dist.all_reduce(big, async_op=True)
    early = work.is_completed()
    work.wait()
    torch.cuda.synchronize()
    futures = []
    dist.all_reduce(big, async_op=True).get_future().then(lambda future: futures.append(future.value()[0][0].item()))
    return [early, work.is_completed(), big[0].item(), *futures]


def coalesced():
    """Several collectives as one."""
    first, second = c(rank), c(rank, 1)
    with dist._coalescing_manager(device=torch.device("cuda", rank), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    return [first, second]


def scattered_future():
    """What a future of a collective over lists holds: its outputs."""
    output = zeros(1)
    (found,) = dist.reduce_scatter(output, [c(1), c(2)], async_op=True).get_future().wait()
    assert found is output or found.data_ptr() == output.data_ptr()
    return found


zeros = lambda count: torch.zeros(count, device="cuda")  # noqa: E731
record("all_reduce", lambda: into(c(rank + 1), dist.all_reduce))
record("average", lambda: into(c(rank + 1), dist.all_reduce, op=dist.ReduceOp.AVG))
record("integer_average", lambda: into(c(rank * 3).long(), dist.all_reduce, op=dist.ReduceOp.AVG))
record("maximum", lambda: into(c(rank + 1), dist.all_reduce, op=dist.ReduceOp.MAX))
record("premultiplied", lambda: into(c(rank + 1), dist.all_reduce, op=dist._make_nccl_premul_sum(0.5)))
record("truth", lambda: into(torch.tensor([True, rank == 0], device="cuda"), dist.all_reduce).view(torch.uint8))
record("short", lambda: dist.all_reduce(c(1).short()))
record("half", lambda: into(c(rank + 1).bfloat16(), dist.all_reduce))
record("all_gather", lambda: into([zeros(1), zeros(1)], dist.all_gather, c(rank)))
record("all_gather_into_tensor", lambda: into(zeros(4), dist.all_gather_into_tensor, c(rank, 5)))
record("wrong_size", lambda: dist.all_gather_into_tensor(zeros(3), c(rank)))
record("wrong_part", lambda: dist.reduce_scatter_tensor(zeros(1), c(1, 2, 3)))
small = c(rank, 2).to(torch.float8_e4m3fn)
record("float8", lambda: into(zeros(4).to(small.dtype), dist.all_gather_into_tensor, small).float())
record("float8_functional", lambda: functional.all_gather_tensor(small, 0, dist.group.WORLD).float())
record("float8_sum", lambda: dist.all_reduce(small))
record("reduce_scatter", lambda: into(zeros(1), dist.reduce_scatter, [c(1), c(2)]))
record("reduce_scatter_tensor", lambda: into(zeros(1), dist.reduce_scatter_tensor, c(rank, 2), op=dist.ReduceOp.AVG))
record("uneven_gather", lambda: into([zeros(1), zeros(2)], dist.all_gather, c(*range(rank + 1))))
record("uneven_scatter", lambda: into(zeros(rank + 1), dist.reduce_scatter, [c(1), c(1, 2)]))
parts = [c(rank), c(10 * rank)]
record("scattered_maximum", lambda: into(zeros(1), dist.reduce_scatter, parts, op=dist.ReduceOp.MAX))
record("scattered_future", scattered_future)
record("all_to_all", lambda: into([zeros(1), zeros(1)], dist.all_to_all, [c(rank), c(rank + 10)]))
record("all_to_all_single", lambda: into(zeros(2), dist.all_to_all_single, c(rank, rank + 10)))
parts = [c(rank), c(rank, 5)]
record("uneven_all_to_all", lambda: into([zeros(rank + 1), zeros(rank + 1)], dist.all_to_all, parts))
pair_of = lambda tensor: torch.view_as_real(tensor)  # noqa: E731
number = c(rank) + 1j
record("complex", lambda: pair_of(into(number.clone(), dist.all_reduce)))
record("complex_part", lambda: pair_of(into(number.new_zeros(1), dist.reduce_scatter_tensor, torch.cat([number] * 2))))
record("complex_broadcast", lambda: pair_of(into(number.clone(), dist.broadcast, 1)))
record("complex_functional", lambda: pair_of(functional.all_gather_tensor(number, 0, dist.group.WORLD) + 0))
record("functional_average", lambda: functional.all_reduce(c(rank, 1), "avg", dist.group.WORLD) + 0)
record("functional_part", lambda: functional.reduce_scatter_tensor(c(rank, 2 * rank), "avg", 0, dist.group.WORLD) + 0)
record("float8_functional_sum", lambda: functional.all_reduce(small, "sum", dist.group.WORLD))
record("bits", lambda: into(c(1).long(), dist.all_reduce, op=dist.ReduceOp.BAND))
record("mean_truth", lambda: into(c(1).bool(), dist.all_reduce, op=dist.ReduceOp.AVG))
record("broadcast", lambda: into(c(rank), dist.broadcast, 1))
record("reduce", lambda: into(c(rank + 1), dist.reduce, 0))
record("scatter", lambda: into(zeros(1), dist.scatter, [c(5), c(6)] if rank == 0 else None))
gathered = [zeros(1), zeros(1)] if rank == 0 else None
record("gather", lambda: (dist.gather(c(rank), gathered), gathered)[1])
record("pair", pair)
record("send", lambda: one_way(any_source=False))
record("any_source", lambda: dist.irecv(c(0)))
record("objects", objects)
record("barrier", lambda: dist.barrier(device_ids=[rank]))
record("asynchronous", asynchronous)
record("coalesced", coalesced)
record("functional", lambda: functional.all_reduce(c(rank, 1), "sum", dist.group.WORLD) + 0)
record("functional_gather", lambda: functional.all_gather_tensor(c(rank), 0, dist.group.WORLD) + 0)


def kept():
    """What a functional collective holds in whole MiB until its result is used, and after."""
    before = torch.cuda.memory_allocated()
    result = functional.all_reduce(torch.ones(1 << 18, device="cuda"), "sum", dist.group.WORLD)
    in_flight = torch.cuda.memory_allocated() - before
    result = result[0].item()
    for _ in range(1000):  # gloo's thread lets go of the tensors when the machine gives it a turn
        if torch.cuda.memory_allocated() - before < 1 << 20:
            break
        threading.Event().wait(0.01)
    return [round(in_flight / 2**20), round((torch.cuda.memory_allocated() - before) / 2**20), result]


record("functional_kept", kept)
record("cpu_tensor", lambda: dist.all_reduce(torch.ones(2)))
record("sparse", lambda: dist.all_reduce(torch.eye(2, device="cuda").to_sparse()))
record("not_contiguous", lambda: dist.all_reduce(torch.ones(2, 3, device="cuda").t()))
record("monitored_barrier", lambda: dist.monitored_barrier())
gloo = dist.new_group([0, 1], backend="gloo")
host = torch.ones(2)
dist.all_reduce(host, group=gloo)
seen["gloo"] = [dist.get_backend(gloo), host.tolist()]
record("gloo_sparse", lambda: into(torch.eye(2, device="cuda").to_sparse(), dist.all_reduce, group=gloo).to_dense())
record("gloo_any_source", lambda: one_way(any_source=True, group=gloo))
record("gloo_on_device", lambda: into(c(rank), dist.all_reduce, group=gloo))
both = dist.new_group([0, 1], backend="cpu:gloo,cuda:nccl")
dist.all_reduce(host, group=both)
seen["both"] = host.tolist()
record("both_on_device", lambda: into(c(rank), dist.all_reduce, group=both))
alone = dist.new_group([0])
seen["alone"] = dist.get_backend(alone) if rank == 0 else str(alone == dist.GroupMember.NON_GROUP_MEMBER)
torch.cuda.empty_cache()
before = torch.cuda.mem_get_info()[0]
dist.destroy_process_group()
seen["given_back"] = (torch.cuda.mem_get_info()[0] - before) >> 20
with open(f"{sys.argv[1]}.{rank}", "w") as file:
    json.dump(seen, file)
