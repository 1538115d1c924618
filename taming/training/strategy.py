"""How several processes train one model."""

from datetime import timedelta

from lightning.pytorch.strategies import DDPStrategy

__all__ = ["data_parallel"]


def data_parallel(discriminator: bool, accumulates: bool = False) -> DDPStrategy:
    """Returns data-parallel training, for a stage with or without a discriminator."""
    return DDPStrategy(
        timeout=timedelta(days=1),  # they wait while the first one prepares the data
        # not where the discriminator joins later; and PyTorch fails if the first batch accumulates
        static_graph=not discriminator and not accumulates,
        gradient_as_bucket_view=True,
        # they are made of what all ranks have seen, or, as BatchNorm's, used by no validation
        broadcast_buffers=False,
    )
