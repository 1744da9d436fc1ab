"""Lets an environment whose torch is a CPU build import torchvision, whose package is built for CUDA. For `make env`; users install
the two from one index, where they fit.

The import fails for want of operators that pictures do not need: they are declared before torchvision is executed, in every process of
the environment. Does nothing where torch has CUDA.

    python tools/torchvision_over_cpu.py        puts it into the environment of this Python
"""

import importlib.machinery
import sys

OPERATORS = ("nms", "qnms")
kept = []
"""Declarations, which last as long as these objects."""


def declare():
    """Declare the operators that torchvision registers more about."""
    import torch

    if torch.version.cuda is not None or kept:
        return
    kept.append(torch.library.Library("torchvision", "DEF"))
    for name in OPERATORS:
        kept[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


class Finder:
    """Finds torchvision as Python does, and has the operators declared before it is executed."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (declare(), execute(module))
        return spec


if __name__ == "__main__":  # these imports would cost every process of the environment some milliseconds
    import shutil
    import sysconfig
    from pathlib import Path

    folder = Path(sysconfig.get_path("purelib"))
    shutil.copyfile(__file__, folder / "torchvision_over_cpu.py")
    (folder / "torchvision_over_cpu.pth").write_text("import torchvision_over_cpu\n")
else:
    sys.meta_path.insert(0, Finder)
