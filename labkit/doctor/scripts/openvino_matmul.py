# python labkit/doctor/scripts/openvino_matmul.py
"""Run matmuls with OpenVINO, and import the packages that labs 04 and 10 use with it."""

import nncf
import numpy as np
import openvino
import openvino_genai

from labkit.roofline import peaks

if __name__ == "__main__":
    openvino.compile_model(peaks.chain(8, quantised=True), "CPU")(np.ones((16, 8), np.float32))
    print(f"runs an 8-bit model (OpenVINO GenAI {openvino_genai.__version__}, NNCF {nncf.__version__})")
