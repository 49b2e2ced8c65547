"""Attacks by name, from connections in CSV without a header.

    python -m ooc_fw.guides.intrusion

Columns 1, 2 and 3 are words, and the last one is the kind of attack. The connections are made up,
a few attacks among them that look ordinary. Results go to a new folder, intrusion-example.
"""

import numpy as np

from ooc_fw.cli.demo import begin_example, end_example

begin_example(__file__)
n = 8000
rng = np.random.default_rng(0)
kind = rng.choice(4, n, p=[0.6, 0.25, 0.13, 0.02])
shown = np.where(rng.random(n) < 0.01, 0, kind)
seconds = rng.exponential(9, n).astype(int)
protocol = np.array(["tcp", "icmp", "tcp", "tcp"])[shown]
service = np.where(shown == 1, "ecr_i", rng.choice(["http", "smtp", "private"], n))
flag = np.array(["SF", "SF", "S0", "REJ"])[shown]
n_bytes = np.exp(rng.normal(np.array([6, 7, 0, 1])[shown], 1)).astype(int)
name = np.array(["normal.", "smurf.", "neptune.", "portsweep."])[kind]
columns = np.column_stack([seconds, protocol, service, flag, n_bytes, name])
np.savetxt("connections.csv", columns, "%s", delimiter=",")
end_example("""
info connections.csv --no-header --label -1
convert connections.csv connections.h5 --no-header --label -1 \
    --one-hot 1,2,3 --log1p --scale standard
split connections.h5 train.h5 test.h5
train train.h5 -o attacks.h5 --C 100
evaluate attacks.h5 test.h5 --figure intrusion.svg
""")
