"""Four methods on one problem: the gap of each against time and iterations, in one figure.

    python -m ooc_fw.guides.methods

The problem is a1a, 1,605 rows of the UCI Adult set, which comes with the package. Results go to a
new folder, methods-example.
"""

import shlex
from importlib.resources import files

from ooc_fw.cli.demo import begin_example, end_example

begin_example(__file__)
path = shlex.quote(str(files("ooc_fw.data") / "samples" / "a1a.xz"))
train = "train rows.h5 --lmo full --exact --C 1 --tol 1e-2 --max-time 60s"
end_example(f"""
convert {path} rows.h5
{train} --method fw -o fw.h5 --log fw.jsonl
{train} --method partan -o partan.h5 --log partan.jsonl
{train} --method swap2 -o swap2.h5 --log swap2.jsonl
{train} --method corrective -o corrective.h5 --log corrective.jsonl
plot fw.jsonl partan.jsonl swap2.jsonl corrective.jsonl --panels gap -o methods.svg
""")
