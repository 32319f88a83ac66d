"""What each experiment must find, whatever the numbers are exactly."""


# mission 105, 129
def test_small_products_are_faster_on_the_cpu_and_large_ones_on_the_gpu(small):
    result = small("matmul")
    (table,) = result.tables
    singles = [row for row in table.rows if row[0] == "float32"]
    speedups = [row[5] for row in singles]
    assert speedups[-1] > 10
    assert speedups[-1] > speedups[0]
    assert result.facts["speedup_largest"].value == speedups[-1]
    faster = [row[1] for row in singles if row[3] < row[2]]
    assert result.facts["crossover"].value == faster[0]
    assert all(row[4] > row[3] for row in table.rows)
    shares = [row[7] for row in singles]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1


# mission 129
def test_without_a_gpu_the_cpu_is_measured_alone(small):
    result = small("matmul", None)
    assert set(result.devices) == {"cpu"}
    assert result.tables[0].column("GPU") == [None] * len(result.tables[0].rows)
    assert "--gpus" in result.conclusion[1]
