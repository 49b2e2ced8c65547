"""Limits of memory and processors that control groups of Linux state, as files show them."""

import os

import pytest

from ooc_fw.system.memory import memory_total
from ooc_fw.system.threads import cpu_count

MIB = 1 << 20
FREE = {"a/b/memory.max": "max", "a/b/cpu.max": "max 100000"}
VERSION_1 = {
    "memory/pod/c/memory.limit_in_bytes": 9223372036854771712,  # which stands for no limit
    "memory/pod/memory.limit_in_bytes": MIB,
    "cpu,cpuacct/x/cpu.cfs_quota_us": 300000,
    "cpu,cpuacct/x/cpu.cfs_period_us": 100000,
    "cpu,cpuacct/cpu.cfs_quota_us": -1,
    "cpu,cpuacct/cpu.cfs_period_us": 100000,
}
CASES = {  # groups of the process, files of limits, bytes of memory, processors
    "no limit": ("0::/a/b", FREE, None, 8),
    "own limits": ("0::/a b", {"a b/memory.max": MIB, "a b/cpu.max": "150000 100000"}, MIB, 2),
    "of groups around": ("0::/a/b", FREE | {"a/memory.max": MIB, "cpu.max": "1 100"}, MIB, 1),
    "no numbers": ("0::/../b", {"memory.max": "no", "cpu.max": "no"}, None, 8),
    "group seen as the root": ("0::/docker/12ab", {"memory.max": MIB, "cpu.max": "3 1"}, MIB, 3),
    "version 1": ("5:cpu,cpuacct:/x\n4:memory:/pod/c", VERSION_1, MIB, 3),
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
