"""Copies of vectors in LLVM IR: whole, and aligned as their type says."""

from __future__ import annotations

from windtunnel.compiler.accesses import whole_accesses

MODULE = """\
define void @k(ptr %0) {
  %2 = alloca %struct.float4, align 16
  %3 = load ptr, ptr %0, align 8, !tbaa !9
  %4 = getelementptr inbounds float, ptr addrspacecast (ptr addrspace(3) @tile to ptr), i64 %5
  COPY
  ret void
}
!1 = !{!2, i64 1, !"omnipotent char"}
!2 = !{!"Simple C++ TBAA"}
!3 = !{!1, i64 4, !"float"}
!4 = !{!1, i64 16, !"_ZTS6float4", !3, i64 0, i64 4, !3, i64 4, i64 4, !3, i64 8, i64 4, !3, i64 12, i64 4}
!5 = !{!4, !4, i64 0, i64 16}
!6 = !{!1, i64 8, !"long"}
!7 = !{!6, !6, i64 0, i64 8}
!8 = !{!1, i64 16, !"_ZTS4Four", !3, i64 0, i64 16}
!10 = !{!8, !8, i64 0, i64 16}
!11 = !{!12, !6, i64 0, i64 8}
!12 = !{!1, i64 8, !"_ZTS6Packed", !6, i64 0, i64 8}
"""


def body(copy: str) -> list[str]:
    lines = whole_accesses(MODULE.replace("COPY", copy)).split("\n")
    return [line.strip() for line in lines[4 : lines.index("  ret void")]]


def memcpy(target: str, source: str, tag: int) -> str:
    return f"call void @llvm.memcpy.p0.p0.i64({target}, {source}, i64 16, i1 false), !dbg !0, !tbaa !{tag}"


def test_a_vector_is_read_at_its_own_alignment() -> None:
    assert body(memcpy("ptr align 16 %2", "ptr align 4 %4", 5)) == [
        "call void @llvm.memcpy.p0.p0.i64(ptr align 16 %2, ptr align 16 %4, i64 16, i1 false), !dbg !0"
    ]


def test_a_vector_from_memory_to_memory_is_one_load_and_one_store() -> None:
    assert body(memcpy("ptr align 4 %4", "ptr align 16 %3", 5)) == [
        "%whole.0.0 = load <4 x i32>, ptr %3, align 16, !dbg !0",
        "store <4 x i32> %whole.0.0, ptr %4, align 16, !dbg !0",
    ]


def test_a_structure_of_floats_is_no_vector() -> None:
    assert body(memcpy("ptr align 4 %4", "ptr align 4 %3", 10)) == [
        "call void @llvm.memcpy.p0.p0.i64(ptr align 4 %4, ptr align 4 %3, i64 16, i1 false), !dbg !0"
    ]


def test_a_copy_of_bytes_is_left_alone() -> None:
    plain = "call void @llvm.memcpy.p0.p0.i64(ptr align 16 %2, ptr align 4 %4, i64 16, i1 false), !dbg !0"
    assert body(plain) == [plain]


def test_a_number_in_an_array_of_smaller_ones_has_its_own_alignment() -> None:
    assert body("%6 = load i64, ptr %4, align 4, !tbaa !7") == ["%6 = load i64, ptr %4, align 8"]
    assert body("store i64 0, ptr %4, align 4, !dbg !0, !tbaa !7") == ["store i64 0, ptr %4, align 8, !dbg !0"]


def test_a_member_of_a_packed_structure_keeps_its_alignment() -> None:
    assert body("%6 = load i64, ptr %4, align 1, !tbaa !11") == ["%6 = load i64, ptr %4, align 1"]
    assert body("%6 = load i64, ptr %3, align 1, !tbaa !7") == ["%6 = load i64, ptr %3, align 1"]
