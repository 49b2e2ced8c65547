import os

import pytest

from ooc_fw.system.memory import memory_total
from ooc_fw.system.threads import cpu_count

MIB = 1 << 20


@pytest.mark.parametrize(
    ("groups", "files", "memory", "cpus"),
    [
        ("", {}, None, 8),
        # Version 2: limits of the group, of a group around it, and none.
        ("0::/a/b", {"a/b/memory.max": MIB, "a/b/cpu.max": "150000 100000"}, MIB, 2),
        (
            "0::/a b/c",
            {"a b/c/memory.max": "max", "a b/memory.max": MIB, "cpu.max": "10000 100000"},
            MIB,
            1,
        ),
        ("0::/a", {"a/memory.max": "max", "a/cpu.max": "max 100000"}, None, 8),
        ("0::/a/../../../b", {"memory.max": "no", "cpu.max": "no"}, None, 8),
        ("4:cpu,memory:/", {"cpu,memory/cpu.cfs_quota_us": 100000}, None, 8),  # without a period
        # A container that sees its own group as the root, under the name it has on the host.
        ("0::/docker/12ab", {"memory.max": MIB, "cpu.max": "300000 100000"}, MIB, 3),
        # Version 1, which states a very large number or -1 where there is no limit.
        (
            "5:cpu,cpuacct:/x\n4:memory:/pod/c",
            {
                "memory/pod/c/memory.limit_in_bytes": 9223372036854771712,
                "memory/pod/memory.limit_in_bytes": MIB,
                "cpu,cpuacct/x/cpu.cfs_quota_us": 300000,
                "cpu,cpuacct/x/cpu.cfs_period_us": 100000,
                "cpu,cpuacct/cpu.cfs_quota_us": -1,
                "cpu,cpuacct/cpu.cfs_period_us": 100000,
            },
            MIB,
            3,
        ),
        # Both at once: the memory controller is of version 1.
        ("4:memory:/\n0::/", {"memory/memory.limit_in_bytes": MIB}, MIB, 8),
    ],
)
def test_limits_of_control_groups(groups, files, memory, cpus, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    machine = memory_total(str(tmp_path))
    texts = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    for name, text in (texts | {"proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_total(str(tmp_path)) == (machine if memory is None else memory)
    assert cpu_count(str(tmp_path)) == cpus
