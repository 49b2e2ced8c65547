"""Late departures, from a table with categories and dates: a search of C and gamma, and a model.

    python -m ooc_fw.guides.tables

The columns are carrier, origin, departs (a date and time), distance and late. Departures from 200
airports are made up. Results go to a new folder, tables-example.
"""

import numpy as np

from ooc_fw.cli.demo import begin_example, end_example

begin_example(__file__)
n = 6000
rng = np.random.default_rng(0)
carrier, origin, hour = (rng.integers(0, most, n) for most in (9, 200, 24))
date = np.datetime64("2024-01-01") + rng.integers(0, 365, n)
departs = date.astype("datetime64[m]") + 60 * hour + rng.integers(0, 60, n)
delay = rng.normal(0, 1, 200)[origin] + rng.normal(0, 0.5, 9)[carrier] + rng.normal(0, 0.7, n)
late = np.where(delay + 1.5 * np.cos((hour - 18) / 12 * np.pi) > 1, "yes", "no")
names = np.array(list("ABCDEFGHI"))[carrier], np.char.add("airport ", origin.astype(str))
columns = np.column_stack([*names, departs.astype(str), rng.integers(100, 4000, n), late])
header = "carrier,origin,departs,distance,late"
np.savetxt("departures.csv", columns, "%s", ",", header=header, comments="")
end_example("""
info departures.csv --label late
convert departures.csv departures.h5 --label late \
    --one-hot carrier --target-encode origin --dates departs --scale standard
split departures.h5 train.h5 test.h5
tune train.h5 -o late.h5 --max-time 60s
evaluate late.h5 test.h5
importance late.h5 test.h5 --figure tables.svg
""")
