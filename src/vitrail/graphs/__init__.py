"""The network as a graph that other runtimes take: traced, then ONNX or OpenVINO. Knows no images."""
