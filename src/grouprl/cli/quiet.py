"""Keeping other libraries' progress bars out of this package's output."""


def silence_loading_bars() -> None:
    """Hide the bars of reading and writing model files; those of downloads stay."""
    from huggingface_hub.utils import enable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()
    enable_progress_bars()
