"""Checks on how well devices are used: launches, input, tensor cores, clocks."""

from __future__ import annotations

from traces import HTOD_PINNED, Program

from windtunnel import checks

MATRIX = {"shapes": ((512, 512), (512, 512)), "dtypes": ("float32", "float32"), "inputs": 2, "flops": 1 << 28}


def found(program, *codes):
    return [(f.code, f.site.line, f.severity) for f in checks.run(program.trace, codes or None)]


def test_thousands_of_tiny_kernels_are_launch_bound(program):
    for number in range(100):
        for _ in range(30):
            program.kernel(ns=1_500)
        program.step(number, line=8)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.times) == ("launch-bound", 8, 3000)
    assert finding.lost_ns == 2999 * 3_500


def test_what_happens_once_does_not_hide_that_launches_bind(program):
    program.kernel().host(500_000_000, name="first use: context")
    for _ in range(3000):
        program.kernel(ns=1_500)
    assert found(program) == [("launch-bound", 0, "warning")]


def test_what_happens_once_on_another_device_takes_nothing_from_this_one_s_share(program):
    for _ in range(3000):
        program.kernel(ns=1_500)
    program.host(60_000_000, name="first use: cuSOLVER").kernel(device=1)
    (finding,) = checks.run(program.trace)
    assert " 70 % of the run" in finding.message


def test_large_kernels_are_not_launch_bound(program):
    for _ in range(3000):
        program.kernel(ns=20_000)
    assert found(program) == []


def test_a_short_program_is_not_judged(program):
    for _ in range(500):
        program.kernel(ns=1_500)
    assert found(program) == []


def test_idling_for_a_wait_is_not_idling_for_launches(program):
    for _ in range(3000):
        program.kernel(ns=4_000).item(line=3)
    assert found(program) == [("host-sync", 3, "warning")]


def test_waiting_for_input(program):
    for _ in range(10):
        program.host(5_000_000).copy(HTOD_PINNED, 1 << 20, line=4, non_blocking=1).kernel(ns=2_000_000)
    assert found(program) == [("idle-gpu", 4, "warning")]


def test_one_long_pause_is_set_up(program):
    program.kernel(ns=2_000_000).host(500_000_000)
    for _ in range(10):
        program.host(200_000).kernel(ns=2_000_000, line=4)
    assert found(program) == []


def test_a_device_that_waits_while_another_works_does_not_wait_for_input():
    program = Program(gpus=2)
    for _ in range(10):
        program.kernel(ns=2_000_000).wait("aten::_local_scalar_dense", 3).kernel(ns=4_000, device=1)
    assert found(program, "idle-gpu") == []


def v100(program: Program) -> Program:
    program.trace.facts["gpus"] = [
        {"name": "Tesla V100-SXM2-16GB", "compute_capability": [7, 0], "peak_flops": {"fp32": 15.7e12, "fp16": 125e12}}
    ]
    return program


def test_matrix_products_in_full_precision(program):
    for number in range(110):
        v100(program).kernel("aten::mm", ns=900_000, **MATRIX).kernel(ns=50_000).step(number, line=6)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line) == ("low-tensor-core-use", 6)
    assert "8 times as high" in finding.message
    assert "TF32" not in finding.advice


def test_half_precision_and_tf32_use_tensor_cores(program):
    half = MATRIX | {"dtypes": ("float16", "float16")}
    for _ in range(110):
        v100(program).kernel("aten::mm", ns=900_000, **half)
        program.kernel("aten::mm", ns=900_000, detail=(("tf32", 1),), **MATRIX)
    assert found(program) == []


def test_sizes_that_are_no_multiples_of_eight(program):
    odd = MATRIX | {"dtypes": ("float16", "float16"), "shapes": ((512, 511), (511, 512))}
    for _ in range(110):
        v100(program).kernel("aten::mm", ns=900_000, **odd)
    (finding,) = checks.run(program.trace)
    assert "multiples of eight" in finding.message


def test_a_card_without_tensor_cores_has_none_to_use(program):
    program.trace.facts["gpus"] = [{"name": "Tesla P100-SXM2-16GB", "compute_capability": [6, 0]}]
    for _ in range(110):
        program.kernel("aten::mm", ns=900_000, **MATRIX)
    assert found(program) == []


def test_a_clock_read_too_early(program):
    program.clock(2).kernel(ns=5_000_000).clock(4)
    (finding,) = checks.run(program.trace)
    assert (finding.code, finding.site.line, finding.other.line) == ("wrong-timing", 4, 2)
    assert "5.00 µs were measured" in finding.message


def test_a_clock_read_after_waiting(program):
    program.clock(2).kernel(ns=5_000_000).item(line=3).clock(4)
    assert found(program, "wrong-timing") == []


def test_a_timing_that_is_nearly_right(program):
    program.clock(2)
    for _ in range(1000):
        program.kernel(ns=1_000)
    program.clock(4)
    assert found(program, "wrong-timing") == []


def test_one_step_of_a_loop_on_its_way_to_a_steady_one(program):
    for number in range(20):
        program.kernel(ns=50_000 if number == 0 else 100_000).clock(4)
        program.item(line=5)
    assert found(program, "wrong-timing") == []


def timed_rank(waits: bool) -> Program:
    """A rank whose loop times its steps; the one that prints them reads the loss as well."""
    rank = Program()
    for _ in range(20):
        rank.kernel(ns=100_000).clock(4)
        if waits:
            rank.item(line=5)
    return rank


def test_a_rank_that_prints_no_time_is_excused_by_the_one_that_does():
    prints, reads_for_nothing = timed_rank(waits=True).trace, timed_rank(waits=False).trace
    assert [f.code for f in checks.run(reads_for_nothing, ["wrong-timing"])] == ["wrong-timing"]
    assert checks.run_ranks([prints, reads_for_nothing], ["wrong-timing"]) == []
    assert len(checks.run_ranks([reads_for_nothing, reads_for_nothing], ["wrong-timing"])) == 2


def test_two_clocks_are_two_clocks(program):
    program.clock(2).kernel(ns=5_000_000).clock(4, name="time.time")
    assert found(program) == []


def test_readings_inside_libraries_do_not_count(program, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("x = 1\nfor x in bar(loader):\n    y = net(x)\nwriter.add_scalar('a', 1)\n")
    program.clock(2, file=str(script)).kernel(ns=5_000_000).clock(4, file=str(script))
    assert found(program) == []


def test_work_before_the_first_reading_is_not_what_was_timed(program):
    program.kernel(ns=5_000_000).clock(2).clock(4)
    assert found(program) == []
