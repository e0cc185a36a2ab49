"`decodelab detect` prints and stores whether a file is watermarked."

import json
import re

from decodelab import GreenList, Sample, Temperature, decode, load
from decodelab.cli.main import main


def test_the_detect_command_reports_a_watermark_or_none(tmp_path, capsys):
    watermarked = Sample([Temperature(1.0), GreenList(7)])
    trace = decode(load('pico', device='cpu'), 'def read_lines(path):\n', watermarked, 80, 0)
    (tmp_path / 'a.txt').write_text(trace.text)
    file = tmp_path / 'r.json'
    assert main(['detect', str(tmp_path / 'a.txt'), '--key', '7', '--json', str(file)]) == 0
    out = ' '.join(capsys.readouterr().out.split())
    assert re.search(r': watermarked \(p = [^,]+, level 0\.01\)', out), out
    document = json.loads(file.read_text())['documents'][0]
    assert (document['marked'], document['level']) == (True, 0.01)
    assert main(['detect', str(tmp_path / 'a.txt'), '--key', '8', '--json', str(file)]) == 1
    out = ' '.join(capsys.readouterr().out.split())
    assert re.search(r': no watermark found \(p = [^,]+, level 0\.01\)', out), out
    assert 'tokenized again' in out
    assert json.loads(file.read_text())['documents'][0]['marked'] is False
