import numpy as np
import onnxruntime


def test_export(ooc_fw, sure_model, data_file, table, tmp_path):
    out = tmp_path / "m.onnx"
    assert ooc_fw("export", sure_model, out, "--json").json()["probabilities"] is True
    session = onnxruntime.InferenceSession(out.read_bytes())
    X = table.X.astype(np.float64)  # as they were before the conversion, which scaled them
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"X": X}), strict=True))
    lines = ooc_fw("predict", sure_model, data_file).out.split()
    np.testing.assert_array_equal(found["label"], np.array(lines, dtype=float))
