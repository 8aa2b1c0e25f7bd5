"""Bucket counts as few bytes: most buckets are empty, so only the others are written, each as its distance and its count.

Numbers are variable-length: seven bits a byte, lowest first, the highest bit set on all but the last.
"""

from collections.abc import Iterator


def pack_counts(counts: tuple[int, ...]) -> bytes:
    """The counts of all buckets."""
    packed, last = bytearray(), -1
    for index, count in enumerate(counts):
        if count:
            packed += _number(index - last) + _number(count)
            last = index
    return bytes(packed)


def unpack_counts(packed: bytes, length: int) -> tuple[int, ...]:
    """The counts of `length` buckets; what lies beyond is dropped."""
    counts, index, numbers = [0] * length, -1, _numbers(packed)
    for distance in numbers:
        index += distance
        count = next(numbers)
        if index < length:
            counts[index] = count
    return tuple(counts)


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _numbers(packed: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in packed:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
