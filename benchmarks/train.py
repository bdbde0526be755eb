"""Training, measured through the real command: accuracy in a given time, and speed against peers.

    python benchmarks/train.py data cifar10                       image folders, once (also fashion-mnist, flowers)
    python benchmarks/train.py accuracy cifar10 --minutes 30      vitrail train, then vitrail evaluate on the test part
    python benchmarks/train.py peer flowers --minutes 30          timm's ResNet-18 in the same time on the same photos
    python benchmarks/train.py throughput                         whole pipelines, images a second, three side by side
    python benchmarks/train.py floor --kind cifar10               how fast a step could be at best, beside the peers
    python benchmarks/train.py loader                             feeding alone
    python benchmarks/train.py manifest                           feeding from manifests, beside the folder

Nothing else should run meanwhile. Data and runs go to --work; every measurement writes its section of
benchmarks/results/train.md.
"""

from __future__ import annotations

import argparse

from training import accuracy, datasets, floor, loader, manifest_loader, peer, throughput
from training.places import add_shared

COMMANDS = {
    "data": datasets,
    "accuracy": accuracy,
    "peer": peer,
    "throughput": throughput,
    "floor": floor,
    "loader": loader,
    "manifest": manifest_loader,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, help=(module.__doc__ or "").splitlines()[0])
        module.add_arguments(command)
        add_shared(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args()
    arguments.work = arguments.work.expanduser().resolve()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
