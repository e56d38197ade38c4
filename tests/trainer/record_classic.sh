#!/bin/sh
# Records tests/data/classic.json again. Needs a Python with Gymnasium 1.x: PYTHON=...
# tests/trainer/record_classic.sh
set -eu
cd "$(dirname "$0")/../.."
play() { "${PYTHON:-python3}" tests/trainer/gymnasium_classic.py "$@"; }
{
    echo '['
    play CartPole-v0 1 8 2; echo ,
    play CartPole-v1 7 12 3; echo ,
    play Pendulum-v1 2 12 3; echo ,
    play Acrobot-v1 3 12 3; echo ,
    play MountainCar-v0 4 12 3; echo ,
    play MountainCarContinuous-v0 5 12 3
    echo ']'
} > tests/data/classic.json
