"""A kernel as two functions of a warp.

In `whole` every lane of the warp is at the same instruction: registers are SSA values. In `partial` some lanes are
elsewhere: registers lie in the warp's frame, and the lanes at the lowest block run until they leave it. A warp goes
from one to the other where a branch divides its lanes, or where all have met again. Both return what the scheduler
shall do."""

from __future__ import annotations

from windtunnel.ptx import layout as at
from windtunnel.ptx.emitter import FULL, Emitter
from windtunnel.ptx.facts import Kind
from windtunnel.ptx.flow import ENDS, LEAVES, is_barrier, waits_for_others
from windtunnel.ptx.layout import register_type
from windtunnel.ptx.meeting import collective, mask_operand, meets
from windtunnel.ptx.semantics import warps
from windtunnel.ptx.syntax import BYTES, Instruction
from windtunnel.ptx.values import Value, vector

I32 = vector("i32")
ACCESSES, ACCESS = ("ld", "st", "atom", "red"), 32
"""What accesses memory, and how many other instructions take as long."""
SHORT = 12
"""Instructions of a block that is carried out under a mask where a branch divides a warp."""
HEAD = "define i32 @wt_{mode}(ptr noalias %context, ptr noalias %{frame}) {{"


class FunctionText:
    def __init__(self, emitter: Emitter) -> None:
        self.emitter = e = emitter
        self.graph = e.graph
        self.end = len(e.graph.blocks)
        whole = e.mode == at.WHOLE
        e.lines.append(HEAD.format(mode=e.mode, frame="given" if whole else "frame"))
        e.label("start")
        e.emit("%scratch = alloca [8192 x i8], align 64")
        e.emit("%budget = alloca i32, align 4")
        e.emit("%shared_base = load i64, ptr " + e.offset("%context", at.SHARED_BASE) + ", !invariant.load !0")
        if whole:
            self._rows()
        self.counters = e.offset("%frame", at.PROGRAM_COUNTERS)
        self.alive, self.waiting = e.offset("%frame", at.ALIVE), e.offset("%frame", at.WAITING)
        self.resume, self.held = e.offset("%frame", at.RESUME), e.offset("%frame", at.HELD)
        self.signs: dict[tuple[str, ...], int] = {}
        self.budget = e.offset("%frame", at.BUDGET)
        e.store("i32", e.load("i32", self.budget), "%budget")

    def text(self) -> str:
        if self.emitter.mode == at.WHOLE:
            self._whole()
        else:
            self._partial()
        self.emitter.lines.append("}")
        return "\n".join(self.emitter.lines)

    def _target(self, instruction: Instruction) -> int:
        return self.graph.targets[instruction.operands[-1]] if instruction.name == "bra" else self.end

    def _switch(self, number: str, otherwise: str, cases: dict[int, str]) -> None:
        listed = " ".join(f"i32 {i}, label %{name}" for i, name in cases.items())
        self.emitter.emit(f"switch i32 {number}, label %{otherwise} [ {listed} ]")

    def _count(self, index: int, lanes: str) -> None:
        """Adds an execution of the block and its lanes to the context's counts."""
        e = self.emitter
        if not e.instrumented:
            return
        counts = e.load("ptr", e.offset("%context", at.BLOCK_COUNTS), 8)
        for position, amount in ((0, "1"), (8, lanes)):
            pointer = e.offset(counts, 16 * index + position)
            total = e.assign(f"add i64 {e.load('i64', pointer, 8)}, {amount}")
            e.store("i64", total, pointer, 8)

    def _spin(self, index: int, stop: str) -> None:
        """Lets others go on now and then, and ends a warp that would wait for ever."""
        e, block = self.emitter, self.graph.blocks[index]
        if not block or not waits_for_others(block[0]):
            return
        site = e.site(block[0], "wait", "", 0)
        e.declared["wt_spin"] = "declare i32 @wt_spin(i32, ptr, ptr)"
        said = e.assign(f"call i32 @wt_spin(i32 {site}, ptr %context, ptr %frame)")
        self._switch(said, stop, {0: f"W{index}", 2: f"Y{index}"})
        e.label(f"Y{index}")
        if e.mode == at.WHOLE:
            self._move(self.graph.live[index], load=False)
            e.store("i32", str(self.graph.rank[index]), self.resume)
        self._return(at.ASKS)
        e.label(f"W{index}")

    def _count_lanes(self, index: int) -> None:
        e = self.emitter
        if e.instrumented:
            count = e.assign(f"call i32 @llvm.ctpop.i32(i32 {e.mask_bits(e.base or FULL).text})")
            e.declared["llvm.ctpop.i32"] = "declare i32 @llvm.ctpop.i32(i32)"
            self._count(index, e.assign(f"zext i32 {count} to i64"))

    def _loop(self, index: int, label: str, stop: str) -> None:
        """A branch back: now and then it looks whether to go on."""
        e, graph = self.emitter, self.graph
        last = graph.blocks[index][-1]
        inside = [i for block in graph.blocks[self._target(last) : index + 1] for i in block] or [last]
        spent = sum(ACCESS if i.name in ACCESSES else 1 for i in inside)
        left = e.assign(f"sub i32 {e.load('i32', '%budget')}, {spent}")
        e.store("i32", left, "%budget")
        e.emit(f"br i1 {e.assign(f'icmp slt i32 {left}, 0')}, label %L{index}, label %{label}")
        e.label(f"L{index}")
        e.store("i32", str(at.LOOPS), "%budget")
        site = e.site(last, "loop", "", 0)
        e.declared["wt_loop"] = "declare i32 @wt_loop(i32, ptr, ptr)"
        ends = e.assign(f"icmp ne i32 {e.assign(f'call i32 @wt_loop(i32 {site}, ptr %context, ptr %frame)')}, 0")
        e.emit(f"br i1 {ends}, label %{stop}, label %{label}")

    def _return(self, what: object) -> None:
        """Back to the scheduler, which comes again."""
        e = self.emitter
        e.store("i32", e.load("i32", "%budget"), self.budget)
        if e.mode == at.WHOLE:
            e.store("ptr", "%frame", e.offset("%context", at.STOPPED), 8)
        e.emit(f"ret i32 {what}")

    # All lanes

    def _rows(self) -> None:
        """The warps of a block from one barrier to the next, one after another, where all of them are whole."""
        e, graph = self.emitter, self.graph
        for name, kind in graph.registers.items():
            type = register_type(kind) if e.is_scalar(name) else vector(register_type(kind))
            e.emit(f'%"R.{name}" = alloca {type}, align 64')
            e.store(type, "0" if e.is_scalar(name) else "zeroinitializer", f'%"R.{name}"', 8)
        e.emit("%met = alloca i32, align 4")
        e.emit("%place = alloca i32, align 4")
        e.store("i32", "0", "%met")
        waits = any(waits_for_others(i) for block in graph.blocks for i in block)
        last = "null" if waits else e.load("ptr", e.offset("%context", at.LAST), 8)
        e.emit(f"%alone = icmp eq ptr {last}, null")
        e.emit("br label %next\nnext:\n  %frame = phi ptr [ %given, %start ], [ %given, %again ], [ %following, %on ]")
        e.emit(f"%final = icmp eq ptr %frame, {last}")
        e.store("i32", "-1", e.offset("%frame", at.BARRIER))

    def _go_on(self) -> None:
        """Where a warp has ended or waits: the next one's turn, or the first one's if all wait at one barrier."""
        e = self.emitter
        e.label("on")
        e.emit(f"%following = getelementptr i8, ptr %frame, i64 {e.layout.frame_bytes}")
        e.emit("br label %next")
        e.label("everyone")
        met, warps = e.load("i32", "%met"), e.load("i32", e.offset("%context", at.WARPS))
        e.emit(f"br i1 {e.assign(f'icmp eq i32 {met}, {warps}')}, label %again, label %waiting")
        e.label("again")
        e.store("i32", "0", "%met")
        epoch = e.offset(e.load("ptr", e.offset("%context", at.MACHINE), 8), at.EPOCH)
        e.store("i32", e.assign(f"add i32 {e.load('i32', epoch)}, 1"), epoch)
        e.emit("br label %next")
        e.label("waiting")
        self._return(at.AT_BARRIER)

    def _end_whole(self) -> None:
        e = self.emitter
        trap = e.load("i32", e.offset("%context", at.TRAP))
        trap = e.assign(f"icmp ne i32 {trap}, 0")
        stops = e.assign(f"or i1 {e.assign('or i1 %alone, %final')}, {trap}")
        e.emit(f"br i1 {stops}, label %over, label %ended")
        e.label("over")
        self._return(at.FINISHED)
        e.label("ended")
        e.store("i32", str(at.ENDED), e.offset("%frame", at.MODE))
        e.store("i32", "0", self.alive)
        e.emit("br label %on")

    def _whole(self) -> None:
        e, graph = self.emitter, self.graph
        self._switch(e.load("i32", self.resume), "bad", {graph.rank[i]: f"E{i}" for i in sorted(graph.entries)})
        e.label("bad")
        e.emit("ret i32 -2")
        for index in sorted(graph.entries):
            e.label(f"E{index}")
            self._move(graph.live[index], load=True)
            e.emit(f"br label %B{index}")
        for index in range(self.end):
            e.label(f"B{index}")
            self._spin(index, f"B{self.end}")
            self._stay_in_line(index)
            self._count(index, "32")
            e.block(index)
            self._leave_whole(index)
        e.label(f"B{self.end}")
        self._end_whole()
        self._go_on()

    def _stay_in_line(self, index: int) -> None:
        """Where a lane's number would wrap around, the warp goes on lane by lane."""
        e, block = self.emitter, self.graph.blocks[index]
        checked = self.graph.lines.checked.get(block[0]) if block else None
        if checked is None:
            return
        operand, line = checked
        value = e.value(operand, e.type_of_register(operand))
        first, bits = Value(e.first(value), value.type, True), 8 * BYTES[block[0].type]
        signed = block[0].type[0] == "s"
        lowest, highest = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        first = e.resize(first, f"i{bits}")
        below = e.compare("sge" if signed else "uge", first, e.constant(first.type, lowest - min(line.offsets)))
        above = e.compare("sle" if signed else "ule", first, e.constant(first.type, highest - max(line.offsets)))
        e.emit(f"br i1 {e.operation('and', below, above).text}, label %I{index}, label %O{index}")
        e.label(f"O{index}")
        self._move(self.graph.live[index], load=False, apart=True)
        e.store(I32, f"splat (i32 {self.graph.rank[index]})", self.counters, 8)
        self._return(at.TO_PARTIAL)
        e.label(f"I{index}")

    def _wait(self, index: int, barrier: Instruction) -> None:
        """At a barrier: for all threads, and nothing else, it is passed here."""
        e = self.emitter
        if barrier.has("red") or barrier.has("grid") or barrier.operands != ("0",):
            self._return(at.AT_BARRIER)
            return
        site = e.site(barrier, "barrier", "", 0)
        e.emit(f"br i1 %alone, label %waiting, label %M{index}")
        e.label(f"M{index}")
        same = e.assign(f"icmp eq i32 {e.load('i32', '%place')}, {site}")
        before = e.assign(f"select i1 {same}, i32 {e.load('i32', '%met')}, i32 0")
        e.store("i32", e.assign(f"add i32 {before}, 1"), "%met")
        e.store("i32", str(site), "%place")
        e.store("i32", e.load("i32", "%budget"), self.budget)
        e.emit("br i1 %final, label %everyone, label %on")

    def _short(self, index: int) -> bool:
        """Whether a block that some lanes skip is carried out under a mask: the warp stays together."""
        block = self.graph.blocks[index]
        alone = (Kind.BARRIER, Kind.WARP, Kind.CALL)
        return len(block) <= SHORT and not any(
            i.name in ENDS or waits_for_others(i) or self.graph.table[i.name].kind in alone for i in block
        )

    def _beside(self, index: int, skipping: str) -> None:
        e = self.emitter
        e.base = e.assign(f"xor {vector('i1')} {skipping}, {FULL}")
        self._count_lanes(index)
        e.block(index)
        e.flush(e.live_after(index))
        e.base = e.mask = None
        e.emit(f"br label %B{index + 1}")

    def _move(self, registers: set[str], load: bool, apart: bool = False) -> None:
        """Between the frame and the function's own registers; `apart`: the lanes go on by themselves."""
        e = self.emitter
        for name in sorted(registers):
            kind, line = register_type(self.graph.registers[name]), e.line(name)
            align = 4 if kind == "i1" else 8
            slot, own = e.offset("%frame", e.layout.slots[name]), f'%"R.{name}"'
            type = kind if e.is_scalar(name) else vector(kind)
            source, target = (slot, own) if load else (own, slot)
            value = Value(e.load(type, source, align), kind, e.is_scalar(name))
            if apart and line is not None and name not in self.graph.uniform:
                value = e.spread(value) if line.same else e.along(value, line.offsets)
            e.store(e.type_of(value), value.text, target, align)

    def _leave_whole(self, index: int) -> None:
        e, graph = self.emitter, self.graph
        block = graph.blocks[index]
        last = block[-1] if block else None
        following = index + 1
        guard = e.guard(last) if last is not None and last.guard and last.name in ("bra", *LEAVES) else None
        condition = e.lanes(guard) if guard is not None and not guard.uniform else None
        e.flush(e.live_after(index))
        if last is not None and is_barrier(last):
            self._move(graph.live[following], load=False)
            e.store("i32", str(graph.rank[following]), self.resume)
            self._wait(index, last)
            return
        if last is None or last.name not in ("bra", *LEAVES):
            e.emit(f"br label %B{following}")
            return
        target = self._target(last)
        if target <= index:
            self._loop(index, f"C{index}", f"B{self.end}")
            e.label(f"C{index}")
        if guard is not None and guard.uniform:
            e.emit(f"br i1 {guard.text}, label %B{target}, label %B{following}")
            return
        if condition is None:
            e.emit(f"br label %B{target}")
            return
        bits = e.mask_bits(condition)
        none = e.assign(f"icmp eq i32 {bits.text}, 0")
        e.emit(f"br i1 {none}, label %B{following}, label %T{index}")
        e.label(f"T{index}")
        all_lanes = e.assign(f"icmp eq i32 {bits.text}, -1")
        e.emit(f"br i1 {all_lanes}, label %B{target}, label %D{index}")
        e.label(f"D{index}")
        if target == index + 2 and self._short(following):
            self._beside(following, condition)
            return
        self._move(graph.live[following] | graph.live[target], load=False, apart=True)
        counters = e.assign(
            f"select {vector('i1')} {condition}, {I32} splat (i32 {graph.rank[target]}), {I32} "
            f"splat (i32 {graph.rank[following]})"
        )
        e.store(I32, counters, self.counters, 8)
        self._return(at.TO_PARTIAL)

    # Some lanes

    def _partial(self) -> None:
        e, graph = self.emitter, self.graph
        e.emit(f"%mask = alloca {vector('i1')}, align 8")
        e.emit("br label %dispatch")
        e.label("dispatch")
        alive, waiting = e.load("i32", self.alive), e.load("i32", self.waiting)
        free = e.assign(f"xor i32 {waiting}, -1")
        present = e.assign(f"and i32 {alive}, {free}")
        held = e.load("i32", self.held)
        ready = e.assign(f"and i32 {present}, {e.assign(f'xor i32 {held}, -1')}")
        e.emit(f"br i1 {e.assign(f'icmp eq i32 {ready}, 0')}, label %none, label %some")
        e.label("none")
        e.emit(f"br i1 {e.assign(f'icmp eq i32 {held}, 0')}, label %over, label %stuck")
        e.label("stuck")
        e.declared["wt_stuck"] = "declare void @wt_stuck(ptr)"
        e.emit("call void @wt_stuck(ptr %frame)")
        e.emit("br label %dispatch")
        e.label("over")
        finished = e.assign(f"icmp eq i32 {alive}, 0")
        self._return(e.assign(f"select i1 {finished}, i32 {at.FINISHED}, i32 {at.AT_BARRIER}"))
        e.label("some")
        ready = self._called(ready) if graph.apart else ready
        counters = Value(e.load(I32, self.counters, 8), "i32")
        ready_mask = Value(e.mask_of(Value(ready, "i32", True)), "i1")
        lowest = e.reduce("umin", e.select(ready_mask, counters, e.constant("i32", -1)))
        # Lanes that wait for others of their warp let these go on now and then.
        highest = e.reduce("umax", e.select(ready_mask, counters, e.constant("i32", 0)))
        turn = e.assign(f"and i32 {e.load('i32', e.offset('%frame', at.SPINS))}, 64")
        turned = Value(e.assign(f"icmp ne i32 {turn}, 0"), "i1", True)
        lowest = e.select(turned, highest, lowest)
        present_mask = Value(e.mask_of(Value(present, "i32", True)), "i1")
        mask = e.operation("and", e.compare("eq", counters, lowest), present_mask).text
        e.store(vector("i1"), mask, "%mask", 4)
        whole = e.assign(f"icmp eq i32 {e.mask_bits(mask).text}, -1")
        e.emit(f"br i1 {whole}, label %full, label %part")
        e.label("full")
        self._go_whole(lowest.text)
        e.label("part")
        self._switch(lowest.text, f"Q{self.end}", {graph.rank[i]: f"Q{i}" for i in range(self.end)})
        for index in range(self.end):
            e.label(f"Q{index}")
            e.base = e.load(vector("i1"), "%mask", 4)
            self._gather(index)
            self._spin(index, "stop")
            self._count_lanes(index)
            e.block(index)
            self._leave_partial(index)
        e.label("stop")
        e.emit(f"ret i32 {at.FINISHED}")
        e.label(f"Q{self.end}")
        gone = e.mask_bits(e.load(vector("i1"), "%mask", 4)).text
        left = e.assign(f"and i32 {e.load('i32', self.alive)}, {e.assign(f'xor i32 {gone}, -1')}")
        e.store("i32", left, self.alive)
        e.emit("br label %dispatch")

    def _go_whole(self, lowest: str) -> None:
        """All lanes are at one block: the warp goes on as a whole, if it may begin there."""
        e, graph = self.emitter, self.graph
        entries = {graph.rank[i]: i for i in graph.entries}
        lying = {i: [r for r in graph.live[i] if r in graph.lines.of and r not in graph.uniform] for i in graph.entries}
        names = {rank: f"J{entries[rank]}" if lying[entries[rank]] else "to_whole" for rank in sorted(entries)}
        self._switch(lowest, "part", names)
        for index in sorted(i for i in lying if lying[i]):
            e.label(f"J{index}")
            self._in_line(sorted(lying[index]))
        e.label("to_whole")
        e.store("i32", lowest, self.resume)
        e.store("i64", "0", self.held)
        self._return(at.TO_WHOLE)

    def _in_line(self, registers: list[str]) -> None:
        """A warp whose lanes have met goes on whole if its registers lie as they did."""
        e = self.emitter
        wrong = None
        for name in registers:
            kind, line = register_type(self.graph.registers[name]), self.graph.lines.of[name]
            slot = e.offset("%frame", e.layout.slots[name])
            value = Value(e.load(vector(kind), slot, 4 if kind == "i1" else 8), kind)
            first = Value(e.assign(f"extractelement {vector(kind)} {value.text}, i32 0"), kind, True)
            other = e.compare("ne", value, e.spread(first) if line.same else e.along(first, line.offsets))
            wrong = other if wrong is None else e.operation("or", wrong, other)
        bits = e.mask_bits(wrong.text if wrong else FULL).text
        e.emit(f"br i1 {e.assign(f'icmp eq i32 {bits}, 0')}, label %to_whole, label %part")

    def _called(self, ready: str) -> str:
        """Lanes that have met take what the others brought before these go on."""
        e = self.emitter
        called = e.assign(f"and i32 {ready}, {e.load('i32', e.offset('%frame', at.PASSES))}")
        none = e.assign(f"icmp eq i32 {called}, 0")
        return e.assign(f"select i1 {none}, i32 {ready}, i32 {called}")

    def _beyond(self, index: int) -> list[tuple[int, int]]:
        """Ranges of the ranks of blocks that follow this one and do not lead back to it, other than returns."""
        graph = self.graph
        after, before = graph.reached(index, graph.following), graph.reached(index, graph.leading)
        blocks = (
            i for i in after - before - {index, self.end} if graph.blocks[i] and graph.blocks[i][0].name not in LEAVES
        )
        found: list[tuple[int, int]] = []
        for rank in sorted(graph.rank[i] for i in blocks):
            low = found.pop()[0] if found and found[-1][1] == rank else rank
            found.append((low, rank + 1))
        return found

    def _gather(self, index: int) -> None:
        """Lanes that come before those that they name wait for them."""
        e, block = self.emitter, self.graph.blocks[index]
        if not block or not meets(block[0]):
            return
        area = e.offset("%scratch", 0)
        e.store(I32, e.lanes(e.value(mask_operand(block[0]), "i32")), area, 64)
        e.declared["wt_gather"] = "declare i32 @wt_gather(ptr, i32, i32, i32, i32, ptr)"
        sign = self._offer(block[0]) if self.graph.apart and collective(block[0]) else 0
        barrier = int(block[0].name in ("bar", "barrier"))
        bits = e.mask_bits(e.base or "").text
        counters = Value(e.load(I32, self.counters, 8), "i32")
        passed = e.constant("i1", 0)
        for low, high in self._beyond(index):
            inside = e.compare(
                "ult", e.operation("sub", counters, e.constant("i32", low)), e.constant("i32", high - low)
            )
            passed = e.operation("or", passed, inside)
        beyond = e.mask_bits(e.lanes(passed)).text
        go = e.assign(
            f"call i32 @wt_gather(ptr {area}, i32 {bits}, i32 {beyond}, i32 {barrier}, i32 {sign}, ptr %frame)"
        )
        e.emit(f"br i1 {e.assign(f'icmp eq i32 {go}, 0')}, label %dispatch, label %G{index}")
        e.label(f"G{index}")
        e.base = e.mask_of(Value(go, "i32", True))

    def _offer(self, instruction: Instruction) -> int:
        """Lays down what the lanes bring to an instruction at which those of other branches may meet them; answers
        with the number of its kind."""
        e = self.emitter
        value = warps.offer(e, instruction)
        if value is not None:
            place, wide = e.offset("%frame", at.OFFERED), vector("i64")
            old = Value(e.load(wide, place, 8), "i64")
            e.store(wide, e.select(Value(e.base or FULL, "i1"), e.resize(value, "i64"), old).text, place, 8)
        return self.signs.setdefault(instruction.opcode, len(self.signs) + 1)

    def _leave_partial(self, index: int) -> None:
        e = self.emitter
        block = self.graph.blocks[index]
        last = block[-1] if block else None
        following = f"splat (i32 {self.graph.rank[index + 1]})"
        base = e.base or ""
        goes = following
        if last is not None and last.name in ("bra", *LEAVES):
            goes = f"splat (i32 {self.graph.rank[self._target(last)]})"
            if last.guard:
                condition = e.lanes(e.guard(last))
                goes = e.assign(f"select {vector('i1')} {condition}, {I32} {goes}, {I32} {following}")
        e.flush(e.live_after(index))
        old = e.load(I32, self.counters, 8)
        e.store(I32, e.assign(f"select {vector('i1')} {base}, {I32} {goes}, {I32} {old}"), self.counters, 8)
        if last is not None and is_barrier(last):
            waits = e.assign(f"or i32 {e.load('i32', self.waiting)}, {e.mask_bits(base).text}")
            e.store("i32", waits, self.waiting)
        if last is not None and last.name in ("trap",):
            e.emit(f"ret i32 {at.FINISHED}")
        elif last is not None and last.name == "bra" and self.graph.rank[self._target(last)] <= self.graph.rank[index]:
            self._loop(index, "dispatch", "stop")
        else:
            e.emit("br label %dispatch")
