"""A second caching allocator, written to be obviously right: lists, scans, and sums made anew each time.

It knows nothing of the fast one but its settings and a driver, and covers the default and the split-limited
allocator, several streams, rounding, the memory fraction and cache flushes. Tests compare the two.
"""

from __future__ import annotations

MIB = 1 << 20


class SlowAllocator:
    """`segments` maps an address to [pool, stream, pieces], a piece being [size, requested or None when free]."""

    def __init__(self, driver, settings):
        self.driver = driver
        self.settings = settings
        self.segments = {}
        self.pending = {}

    def pieces(self):
        for address, (pool, stream, pieces) in self.segments.items():
            offset = address
            for piece in pieces:
                yield offset, pool, stream, piece
                offset += piece[0]

    def rounded(self, requested):
        if requested < 512:
            return 512
        divisions = self.settings.divisions(requested)
        if divisions > 1 and requested > 512 * divisions:
            power = 1
            while power * 2 <= requested:
                power *= 2
            steps = [power + power * step // divisions for step in range(divisions)] + [2 * power]
            return min(step for step in steps if step >= requested)
        return (requested + 511) // 512 * 512

    def malloc(self, requested, stream=0):
        """The address of a new allocation, or None when memory runs out."""
        size = self.rounded(requested)
        pool = "small" if size <= MIB else "large"
        address = self.search(size, pool, stream)
        if address is None:
            want = (
                2 * MIB
                if pool == "small"
                else 20 * MIB
                if size < 10 * MIB
                else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            )
            got = self.driver.malloc(want)
            if got is None and self.free_oversize(size, pool, stream):
                got = self.driver.malloc(want)
            if got is None:
                self.empty_cache()
                got = self.driver.malloc(want)
            if got is None:
                return None
            self.segments[got] = [pool, stream, [[want, None]]]
            address = got
        self.take(address, size, requested, pool)
        return address

    def search(self, size, pool, stream):
        limit = self.settings.max_split_size
        fits = sorted(
            (piece[0], address)
            for address, its_pool, its_stream, piece in self.pieces()
            if piece[1] is None and (its_pool, its_stream) == (pool, stream) and piece[0] >= size
        )
        if not fits:
            return None
        found, address = fits[0]
        if size < limit <= found or (size >= limit and found >= size + 20 * MIB):
            return None
        return address

    def take(self, address, size, requested, pool):
        for base, (_, _, pieces) in self.segments.items():
            offset = base
            for index, piece in enumerate(pieces):
                if offset == address:
                    rest = piece[0] - size
                    split = rest >= 512 if pool == "small" else rest > MIB and size < self.settings.max_split_size
                    piece[1] = requested
                    if split:
                        piece[0] = size
                        pieces.insert(index + 1, [rest, None])
                    return
                offset += piece[0]

    def free(self, address):
        for base, (_, _, pieces) in self.segments.items():
            offset = base
            for index, piece in enumerate(pieces):
                if offset == address and piece[1] is not None:
                    piece[1] = None
                    for other in (index + 1, index):
                        if 0 < other < len(pieces) and pieces[other][1] is None and pieces[other - 1][1] is None:
                            pieces[other - 1][0] += pieces.pop(other)[0]
                    return
                offset += piece[0]

    def free_oversize(self, size, pool, stream):
        limit = self.settings.max_split_size
        wanted = max(size, limit)
        whole = sorted(
            (pieces[0][0], base)
            for base, (its_pool, its_stream, pieces) in self.segments.items()
            if len(pieces) == 1
            and pieces[0][1] is None
            and (its_pool, its_stream) == (pool, stream)
            and pieces[0][0] >= limit
        )
        enough = [entry for entry in whole if entry[0] >= wanted]
        if enough:
            self.release(enough[0][1])
            return True
        released = 0
        for found, base in reversed(whole):
            if released >= wanted:
                break
            released += found
            self.release(base)
        return released >= wanted

    def release(self, base):
        del self.segments[base]
        self.driver.free(base)

    def empty_cache(self):
        for pool in ("large", "small"):
            whole = sorted(
                (stream, pieces[0][0], base)
                for base, (its_pool, stream, pieces) in self.segments.items()
                if its_pool == pool and len(pieces) == 1 and pieces[0][1] is None
            )
            for _, _, base in whole:
                self.release(base)

    def shape(self):
        """All pieces by address: (address, size, requested or None)."""
        return sorted((address, piece[0], piece[1]) for address, _, _, piece in self.pieces())

    def count(self, pool=None):
        """The statistics that a recount gives."""
        own = [entry for entry in self.segments.values() if pool in (None, entry[0])]
        live = [piece for _, _, pieces in own for piece in pieces if piece[1] is not None]
        idle = [piece[0] for _, _, pieces in own if len(pieces) > 1 for piece in pieces if piece[1] is None]
        return {
            "allocation": len(live),
            "allocated_bytes": sum(piece[0] for piece in live),
            "requested_bytes": sum(piece[1] for piece in live),
            "segment": len(own),
            "reserved_bytes": sum(piece[0] for _, _, pieces in own for piece in pieces),
            "inactive_split": len(idle),
            "inactive_split_bytes": sum(idle),
        }
