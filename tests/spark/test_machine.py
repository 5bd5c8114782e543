"""What a machine or a container has left, from files as Linux has them."""

from pathlib import Path

import pytest

from spark.runtime.machine import available_memory, usable_cores

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 4096 kB\nMemAvailable:    2048 kB\nCached: 1 kB\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def group(root: Path, name: str, limit: str, used: int, files: int) -> None:
    write(root, f"sys/fs/cgroup/{name}/memory.max", f"{limit}\n")
    write(root, f"sys/fs/cgroup/{name}/memory.current", f"{used}\n")
    write(root, f"sys/fs/cgroup/{name}/memory.stat", f"anon 1\ninactive_file {files}\nfile 7\n")


def test_without_control_groups_it_is_that_of_the_system(root: Path) -> None:
    assert available_memory(root) == 2 * MIB


def test_nothing_is_known_without_linux(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("outer", "inner", "left"),
    [
        ("max", "max", 2 * MIB),
        ("max", str(MIB), MIB - 1000 + 200),
        (str(MIB), "max", MIB - 5000 + 300),
        (str(MIB), str(MIB), MIB - 5000 + 300),
        ("max", "500", 0),
    ],
)
def test_limits_of_all_groups_count(root: Path, outer: str, inner: str, left: int) -> None:
    write(root, "proc/self/cgroup", "1:cpu:/other\n0::/slice/job\n")
    group(root, "slice", outer, 5000, 300)
    group(root, "slice/job", inner, 1000, 200)
    assert available_memory(root) == left


def test_a_container_sees_its_group_as_the_top(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    group(root, ".", str(MIB), 4096, 0)
    assert available_memory(root) == MIB - 4096


def test_at_least_one_core() -> None:
    assert usable_cores() >= 1
