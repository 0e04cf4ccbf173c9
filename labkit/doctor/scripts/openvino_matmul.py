# python labkit/doctor/scripts/openvino_matmul.py
"""Run matmuls with OpenVINO, and import NNCF, which lab 04 uses with it."""

import nncf
import numpy as np
import openvino

from labkit.roofline import peaks

if __name__ == "__main__":
    openvino.compile_model(peaks.chain(8, quantised=True), "CPU")(np.ones((16, 8), np.float32))
    print(f"runs an 8-bit model (OpenVINO {openvino.__version__}, NNCF {nncf.__version__})")
