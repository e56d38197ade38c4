#!/bin/sh
# Records tests/data/cartpole.json anew. Needs a Python with Gymnasium 1.x: PYTHON=... tests/trainer/record_cartpole.sh
set -eu
cd "$(dirname "$0")/../.."
play() { "${PYTHON:-python3}" tests/trainer/gymnasium_cartpole.py "$@"; }
{
    echo '['
    play CartPole-v1 0 random:100; echo ,
    play CartPole-v1 42 random:100; echo ,
    play CartPole-v1 18446744073709551621 random:60; echo ,
    play CartPole-v1 7 balance:560; echo ,
    play CartPole-v0 1 balance:250
    echo ']'
} > tests/data/cartpole.json
