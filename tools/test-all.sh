#!/bin/sh
# All tests, within an hour: the long ones with coverage, and those of tools/test.sh with wheel and
# source distribution of the last commit, and the lowest and newest versions of the dependencies.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)

sh "$project/tools/test.sh" --long --cov --cov-report term
sh "$project/tools/release.sh" -m "not long"
