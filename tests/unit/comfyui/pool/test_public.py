from comfyrelay.comfyui import pool


def test_public_names_are_sorted_and_defined() -> None:
    assert pool.__all__ == sorted(pool.__all__)
    assert all(hasattr(pool, name) for name in pool.__all__)
