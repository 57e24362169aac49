"""NegGrad+: gradient steps down the retained loss and up the forgotten one.

    probekit unlearn RUN --client north --method py:neggrad:NegGrad:weight=0.1,steps=200

It descends (1 - weight) L_retained - weight L_forgotten, whose minimum exists on a ridge head where
weight is small. Every step is a round of all clients.
"""

from dataclasses import dataclass

from probekit.federated.loss import MeanLoss
from probekit.federated.queries import Gradient
from probekit.unlearning.removal import Need, Questions


@dataclass(frozen=True)
class NegGrad:
    """Options are the fields, with their defaults; they are typed behind the name."""

    promise = "nothing"  # or "minimum": of the retained loss; or "retrained"
    weight: float = 0.05
    steps: int = 50
    rate: float = 0.01

    def needs(self, removal):
        """Checked before anything is asked."""
        return frozenset({Need.TARGET, Need.RETAINED, Need.RETAINED_ROWS})

    def questions(self, removal):
        """What is asked of whom, at most: the plan's rounds and bytes."""
        gradient = Gradient(removal.state.params)
        return [
            Questions(gradient, times=self.steps),
            Questions(gradient, times=self.steps, target=True),
        ]

    def unlearn(self, removal):
        """The state after; `finish` takes the forgotten out of everything that is kept."""
        params = removal.state.params
        ridge = removal.ridge_choice.value
        retained = MeanLoss(removal.retained, ridge)
        forgotten = MeanLoss(removal.target, ridge)
        for _ in range(self.steps):
            down = (1 - self.weight) * retained.gradient(params)
            up = self.weight * forgotten.gradient(params)
            params = params - self.rate * (down - up)
        return removal.finish(params)
