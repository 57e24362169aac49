"""The grey values of a small picture, unchanged where it has the size already."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from probekit.backbones import backbone
from probekit.errors import InputError
from probekit.testing import check_backbone


def test_a_small_grey_picture_is_its_values() -> None:
    values = np.random.default_rng(0).integers(0, 256, (28, 28), dtype=np.uint8)
    encoder = backbone("pixels")
    found = encoder.encode([encoder.preprocess(Image.fromarray(values))])
    np.testing.assert_allclose(found[0], values.reshape(-1) / 255, atol=1e-7)


def test_it_keeps_the_promises_of_a_backbone() -> None:
    assert [check.name for check in check_backbone(backbone("pixels")) if not check.passed] == []


@pytest.mark.parametrize("name", ["pixels:x", "pixels#cls"])
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="#grey"):
        backbone(name)
