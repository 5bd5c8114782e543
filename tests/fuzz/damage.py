"""Shared parts of the codec's fuzz targets: damage to legal packets, and runs with a seed."""

import random
import sys
from collections.abc import Callable


def damage(rng: random.Random, data: bytearray) -> bytes:
    """Change, add or take away a few bytes of legal packets."""
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                data[at] ^= 1 << rng.randrange(8)
            case 2:
                del data[at : at + rng.randrange(1, 4)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 4))
        data = data or bytearray(b"\x00")
    return bytes(data)


def check_many(
    make: Callable[[random.Random], bytes],
    check: Callable[[bytes], int],
    iterations: int,
    seed: int,
) -> int:
    """Check ``iterations`` inputs; the same seed gives the same inputs. Gives the packets seen."""
    rng = random.Random(seed)
    packets = 0
    for _ in range(iterations):
        data = make(rng)
        try:
            packets += check(data)
        except Exception:
            print(f"failed with {data!r}", file=sys.stderr)
            raise
    return packets


def run_script(run: Callable[[int, int], int], arguments: list[str]) -> None:
    """Run a target as a script."""
    iterations, seed = (*map(int, arguments), *(10_000, 1)[len(arguments) :])
    print(f"{iterations} inputs, {run(iterations, seed)} packets, seed {seed}")
