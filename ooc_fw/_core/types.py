"""Names of the array types that signatures speak of."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Float32Array: TypeAlias = npt.NDArray[np.float32]
Float64Array: TypeAlias = npt.NDArray[np.float64]
Int32Array: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Int64Array: TypeAlias = npt.NDArray[np.int64]
Int8Array: TypeAlias = npt.NDArray[np.int8]
