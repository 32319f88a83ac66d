"""What PYTORCH_CUDA_ALLOC_CONF changes, and how its text is read."""

import pytest

from windtunnel.errors import UsageError
from windtunnel.machine.memory.allocator import CachingAllocator
from windtunnel.machine.memory.driver import DeviceMemory, Holder
from windtunnel.machine.memory.heap import round_size
from windtunnel.machine.memory.oom_text import OutOfMemory, OutOfMemoryFacts, format_size, message
from windtunnel.machine.memory.settings import Settings, parse, text_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def make(text="", total=16 * GIB):
    return CachingAllocator(0, DeviceMemory(total), parse(text))


# Rounding


def test_1200_units_with_4_divisions_become_1280():
    """pytorch#74213, in units of 512 bytes so that the rounding to 512 does not show."""
    settings = parse("roundup_power2_divisions:4")
    assert round_size(1200 * 512, settings) == 1280 * 512
    assert [round_size(size * MIB, settings) // MIB for size in (4, 5, 6, 7, 8)] == [4, 5, 6, 7, 8]
    assert round_size(1025 * MIB, settings) == 1280 * MIB


def test_one_division_is_no_rounding():
    """pytorch#161139."""
    assert round_size(514 * MIB + 1, parse("roundup_power2_divisions:[>:1]")) == 514 * MIB + 512
    assert round_size(514 * MIB, parse("roundup_power2_divisions:[1:1,>:2]")) == 768 * MIB


def test_divisions_by_size():
    settings = parse("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert settings.roundup_power2_divisions == (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8)
    sizes = {100: 100, 513: 768, 1025: 1280, 2049: 2304}
    assert {size: round_size(size * MIB, settings) // MIB for size in sizes} == sizes


def test_requests_of_a_few_blocks_are_not_divided():
    assert round_size(1200, parse("roundup_power2_divisions:4")) == 1536


# max_split_size_mb


def test_oversize_blocks_are_not_split():
    """vllm#41268: with 20 MiB the free 530 MiB block is left alone."""
    allocator = make("max_split_size_mb:20")
    allocator.free(allocator.malloc(530 * MIB))
    allocator.malloc(270 * MIB)
    assert allocator.memory_reserved() == 800 * MIB
    stats = allocator.memory_stats()
    assert stats["oversize_segments"]["current"] == 2
    assert stats["oversize_allocations"] == {"current": 1, "peak": 1, "allocated": 2, "freed": 1}
    assert stats["max_split_size"] == 20 * MIB


def test_an_oversize_block_serves_what_is_less_than_20_mib_smaller():
    allocator = make("max_split_size_mb:100")
    allocator.free(allocator.malloc(120 * MIB))
    block = allocator.malloc(102 * MIB)
    assert (block.size, allocator.memory_reserved()) == (120 * MIB, 120 * MIB)


def test_only_enough_oversize_blocks_are_freed():
    allocator = make("max_split_size_mb:20", total=200 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (30, 60, 90)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(70 * MIB)
    assert allocator.memory_reserved() == (30 + 60 + 70) * MIB
    assert allocator.memory_stats()["num_alloc_retries"] == 0


def test_a_split_block_that_became_oversize_is_not_freed():
    """The limit may come later than the split."""
    allocator = make(total=200 * MIB)
    first, second = allocator.malloc(100 * MIB), allocator.malloc(60 * MIB)
    allocator.free(first)
    piece = allocator.malloc(20 * MIB)
    allocator.set_settings(parse("max_split_size_mb:30"))
    with pytest.raises(OutOfMemory):
        allocator.malloc(120 * MIB)
    assert (piece.size, second.size, allocator.memory_reserved()) == (20 * MIB, 60 * MIB, 160 * MIB)


# Fraction and garbage collection


def test_the_memory_fraction_is_a_limit():
    allocator = make()
    allocator.set_memory_fraction(0.5)
    assert allocator.memory_fraction == 0.5
    allocator.malloc(7 * GIB)
    with pytest.raises(OutOfMemory, match=r"8\.00 GiB allowed; "):
        allocator.malloc(2 * GIB)
    with pytest.raises(UsageError, match=r"fraction is 1\.5"):
        allocator.set_memory_fraction(1.5)


def test_garbage_collection_frees_the_blocks_unused_for_longest():
    allocator = make("garbage_collection_threshold:0.5", total=1000 * MIB)
    allocator.set_memory_fraction(0.999)
    old, young = allocator.malloc(200 * MIB), allocator.malloc(300 * MIB)
    allocator.free(old)
    for _ in range(3):
        allocator.free(young)
        young = allocator.malloc(300 * MIB)
    allocator.free(young)
    allocator.malloc(400 * MIB)
    assert allocator.memory_reserved() == 700 * MIB
    assert allocator.memory_stats()["num_device_free"] == 1


def test_refusing_before_the_driver_is_asked():
    allocator = make("throw_on_cudamalloc_oom:True", total=100 * MIB)
    with pytest.raises(OutOfMemory, match="preemptively rejected"):
        allocator.malloc(200 * MIB)
    assert allocator.memory_stats()["num_oom_rejections"] == 1
    assert allocator.driver.malloc_calls == 0


# Expandable segments


def test_an_expandable_segment_grows_page_by_page():
    allocator = make("expandable_segments:True")
    first, second = allocator.malloc(15 * MIB), allocator.malloc(30 * MIB)
    assert second.address == first.address + 15 * MIB
    assert allocator.memory_reserved() == 60 * MIB
    assert allocator.memory_stats()["segment"]["all"]["current"] == 0
    allocator.malloc(1)
    assert allocator.memory_stats()["reserved_bytes"]["small_pool"]["current"] == 2 * MIB
    assert allocator.driver.map_calls == 4


def test_empty_pages_are_unmapped_and_mapped_again_at_the_lowest_place():
    allocator = make("expandable_segments:True")
    blocks = [allocator.malloc(20 * MIB) for _ in range(4)]
    start = blocks[0].address
    allocator.free(blocks[1])
    allocator.free(blocks[3])
    allocator.empty_cache()
    assert allocator.memory_reserved() == 40 * MIB
    runs = [(s["address"] - start, s["total_size"]) for s in allocator.snapshot()["segments"]]
    assert runs == [(0, 20 * MIB), (40 * MIB, 20 * MIB)]
    assert allocator.malloc(20 * MIB).address == start + 20 * MIB
    assert allocator.malloc(30 * MIB).address == start + 60 * MIB


def test_a_page_with_a_live_block_stays_mapped():
    allocator = make("expandable_segments:True")
    first, second = allocator.malloc(30 * MIB), allocator.malloc(5 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.memory_reserved() == 20 * MIB
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.segments == {}
    assert allocator.driver.reserved_bytes == 0


def test_more_than_an_expandable_segment_can_hold_is_out_of_memory():
    allocator = make("expandable_segments:True", total=GIB)
    for size in (GIB + 40 * MIB, 4 * GIB):
        with pytest.raises(OutOfMemory):
            allocator.malloc(size)
    assert (allocator.segments, allocator.memory_reserved()) == ({}, 0)
    assert allocator.malloc(900 * MIB).size == 900 * MIB


def test_expandable_blocks_are_left_alone_once_turned_off():
    allocator = make("expandable_segments:True")
    allocator.free(allocator.malloc(30 * MIB))
    allocator.set_settings(parse("expandable_segments:False", allocator.settings))
    assert not allocator.malloc(30 * MIB).segment.expandable


# The text


def test_settings_keep_what_the_next_text_does_not_name():
    first = parse("expandable_segments:True,max_split_size_mb:100,large_segment_size_mb:40")
    second = parse("garbage_collection_threshold:0.8", first)
    assert second.expandable_segments
    assert second.large_segment_size == 40 * MIB
    assert second.max_split_size == Settings().max_split_size
    assert second.garbage_collection_threshold == 0.8


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("max_split_size_mb:10", ValueError, "CachingAllocator option max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:abc", ValueError, "stoull"),
        ("max_split_size_mb:99999999999999999999999", IndexError, "stoull"),
        ("max_split_size_mb", RuntimeError, "Index out of bounds in ConfigTokenizer"),
        ("large_segment_size_mb:5", ValueError, "CachingAllocator option large_segment_size_mb must be > 10 MB"),
        ("garbage_collection_threshold:1.5", ValueError,
         "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"),
        ("garbage_collection_threshold:x", ValueError, "stod"),
        ("roundup_power2_divisions:3", ValueError, "For roundups, the divisions has to be power of 2 "),
        ("roundup_power2_divisions:[256:3]", ValueError,
         "For roundups, the divisions has to be power of 2 or 0 to disable roundup "),
        ("roundup_power2_divisions:[100:4]", ValueError, "For roundups, the intervals have to be power of 2 "),
        ("roundup_power2_divisions:[256:1", RuntimeError, "Index out of bounds in ConfigTokenizer"),
        ("expandable_segments:true", ValueError,
         "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'"),
        ("large_segment_size_mb:40,max_split_size_mb:30", ValueError,
         "CachingAllocator option max_split_size_mb too small, must be >= 40"),
        ("nonsense:1", ValueError, "Unrecognized key 'nonsense' in Accelerator allocator config."),
        ("backend:fast", ValueError, "Unknown allocator backend, options are native and cudaMallocAsync"),
        ("per_process_memory_fraction:2", ValueError, "per_process_memory_fraction is invalid, set it in [0.0, 1.0]"),
        ("pinned_num_register_threads:3", ValueError, "Number of register threads has to be power of 2, got 3"),
    ],
)  # fmt: skip
def test_a_bad_setting_raises_pytorchs_error(text, error, says):
    """Checked against torch._C._accelerator_setAllocatorSettings of PyTorch 2.13 and CUDAAllocatorConfig.cpp."""
    with pytest.raises(error) as caught:
        parse(text)
    assert str(caught.value) == says


def test_the_older_variable_counts_first():
    both = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:200", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:100"}
    assert text_of(both) == "max_split_size_mb:100"
    assert text_of({"PYTORCH_ALLOC_CONF": "max_split_size_mb:200"}) == "max_split_size_mb:200"
    assert text_of({}) == ""


def test_white_space_does_not_matter():
    settings = parse(" max_split_size_mb : 128 ,\texpandable_segments : True ")
    assert (settings.max_split_size, settings.expandable_segments) == (128 * MIB, True)


# The error's text

FACTS = OutOfMemoryFacts(
    device=0, requested=3 * GIB, size=3 * GIB, alloc_size=3 * GIB, stream=0, device_total=int(79.14 * GIB),
    device_free=int(2.09 * GIB), allocated=int(75.4 * GIB), reserved=int(76.55 * GIB), process_bytes=int(77.04 * GIB),
)  # fmt: skip


def test_the_text_of_2_10_is_the_one_on_record():
    assert message(FACTS, (2, 10)) == (
        "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 79.14 GiB of which 2.09 GiB is "
        "free. Including non-PyTorch memory, this process has 77.04 GiB memory in use. Of the allocated memory 75.40 "
        "GiB is allocated by PyTorch, and 1.15 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
        "memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def test_other_processes_are_named_as_on_record():
    """https://github.com/pytorch/pytorch/blob/v2.6.0/c10/cuda/CUDACachingAllocator.cpp: reportProcessMemoryInfo"""
    others = (Holder(28800, int(15.53 * MIB)), Holder(54776, int(7.75 * GIB)))
    facts = FACTS._replace(others=others, process_bytes=222 * MIB)
    assert (
        " is free. Process 28800 has 15.53 MiB memory in use. Process 54776 has 7.75 GiB memory in use. Including "
        "non-PyTorch memory, this process has 222.00 MiB memory in use. Of the allocated memory "
    ) in message(facts, (2, 6))


@pytest.mark.parametrize(
    ("version", "variable", "address"),
    [
        ((2, 6), "PYTORCH_CUDA_ALLOC_CONF", "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"),
        ((2, 10), "PYTORCH_ALLOC_CONF", "https://pytorch.org/docs/stable/notes/cuda.html#environment-variables"),
        ((2, 13), "PYTORCH_CUDA_ALLOC_CONF",
         "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"),
    ],
)  # fmt: skip
def test_the_advice_goes_by_version(version, variable, address):
    text = message(FACTS, version)
    assert f" try setting {variable}=expandable_segments:True to avoid" in text
    assert text.endswith(f"({address})")


def test_no_advice_that_is_already_followed():
    facts = FACTS._replace(expandable_segments=True)
    assert "expandable_segments" in message(facts, (2, 13))
    assert message(facts, (2, 14)).endswith("is reserved by PyTorch but unallocated.")


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 bytes"), (1024, "1024 bytes"), (1536, "1.50 KiB"), (MIB, "1024.00 KiB"), (GIB + MIB, "1.00 GiB")],
)
def test_sizes_print_as_c10_prints_them(size, text):
    assert format_size(size) == text
