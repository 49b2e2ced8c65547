import os

import pytest

from ooc_fw.system.groups import cpu_count


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a b\n", "sys/fs/cgroup/a b/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cpu.max": "10000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
    ],
)
def test_quotas_of_control_groups_limit_the_processors(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_count(str(tmp_path)) == expected
