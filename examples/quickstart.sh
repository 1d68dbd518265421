#!/usr/bin/env bash
# The main job end to end: example images -> pack -> verify -> a batch -> a short training.
#
#   bash examples/quickstart.sh [WORK]
#
# WORK (quickstart/ in the repository unless given) takes the images and the pack. Everything is
# installed into .venv, made with ${PYTHON:-python3}. Run it as often as you like.
set -euo pipefail

work=${1:+$(realpath -m "$1")}
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=${work:-quickstart}

run() { # show a command, quoted as it would have to be typed, and run it
    printf '\n+%s\n' "$(printf ' %q' "$@")"
    "$@"
}

if [ ! -x .venv/bin/pip ]; then
    if ! "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "${PYTHON:-python3} cannot make virtual environments: apt install python3-venv" >&2
        exit 1
    fi
    run "${PYTHON:-python3}" -m venv .venv
    echo "(the install below takes minutes this first time: PyTorch is large)"
fi
run source .venv/bin/activate
run pip install --quiet -c constraints.txt -e '.[torch]'

run python examples/make_shapes.py "$work/shapes"
run dspack convert "$work/shapes" --to lmdb -o "$work/shapes.lmdb" --overwrite
run dspack verify "$work/shapes.lmdb"
run dspack info "$work/shapes.lmdb"

read_a_batch='
import sys, cv2
from readers.torch import ImageDataset
from torch.utils.data import DataLoader

resize = lambda image: cv2.resize(image, (96, 96))
dataset = ImageDataset(sys.argv[1], "train", transform=resize, arrays=True)
images, labels = next(iter(DataLoader(dataset, batch_size=32, shuffle=True)))
print("images", tuple(images.shape), images.dtype, "labels", tuple(labels.shape), labels.dtype)
'
printf '\n+ python - %q <<EOF%sEOF\n' "$work/shapes.lmdb" "$read_a_batch"
python - "$work/shapes.lmdb" <<<"$read_a_batch"

run python examples/train_shapes.py "$work/shapes.lmdb"

printf '\nTo go on by hand: source %q\n' "$PWD/.venv/bin/activate"
