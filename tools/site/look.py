"""How the pictures of the gallery look: as the figures that ooc-fw draws."""

from importlib.resources import files

import matplotlib.pyplot as plt


def set_look(gallery, script):
    """Set matplotlib's defaults before each script."""
    plt.style.use(str(files("ooc_fw.report") / "figures.mplstyle"))
    plt.rcParams.update({"figure.constrained_layout.use": True, "figure.figsize": (6.4, 4.0)})
