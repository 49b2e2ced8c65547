"""Limits of memory and processors that control groups of Linux state, as files show them."""

import os

import pytest

from ooc_fw.system.memory import memory_total
from ooc_fw.system.threads import cpu_count

MIB = 1 << 20
NONE = 9223372036854771712  # what version 1 states if there is no limit

CASES = {
    "no groups": ("", {}, None, 8),
    "own limits": ("0::/a/b", {"a/b/memory.max": MIB, "a/b/cpu.max": "150000 100000"}, MIB, 2),
    "limits of groups around it": (
        "0::/a b/c",
        {"a b/c/memory.max": "max", "a b/memory.max": MIB, "cpu.max": "10000 100000"},
        *(MIB, 1),
    ),
    "no limit": ("0::/a", {"a/memory.max": "max", "a/cpu.max": "max 100000"}, None, 8),
    "no numbers": ("0::/a/../../../b", {"memory.max": "no", "cpu.max": "no"}, None, 8),
    "a container whose group is the root": (
        "0::/docker/12ab",
        {"memory.max": MIB, "cpu.max": "300000 100000"},
        *(MIB, 3),
    ),
    "version 1": (
        "5:cpu,cpuacct:/x\n4:memory:/pod/c",
        {
            "memory/pod/c/memory.limit_in_bytes": NONE,
            "memory/pod/memory.limit_in_bytes": MIB,
            "cpu,cpuacct/x/cpu.cfs_quota_us": 300000,
            "cpu,cpuacct/x/cpu.cfs_period_us": 100000,
            "cpu,cpuacct/cpu.cfs_quota_us": -1,
            "cpu,cpuacct/cpu.cfs_period_us": 100000,
        },
        *(MIB, 3),
    ),
    "both versions": ("4:memory:/\n0::/", {"memory/memory.limit_in_bytes": MIB}, MIB, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_limits_of_control_groups(case, tmp_path, monkeypatch):
    groups, files, memory, cpus = CASES[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    machine = memory_total(str(tmp_path))
    texts = {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    for name, text in (texts | {"proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_total(str(tmp_path)) == (memory or machine)
    assert cpu_count(str(tmp_path)) == cpus
