"""Distributions of returns, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from assay.functional.distributional import (
    action_atoms,
    atom_targets,
    categorical_kl,
    greedy_atoms,
    project_categorical,
    quantile_midpoints,
)

SUPPORT = torch.tensor([0.0, 1.0, 2.0, 3.0])


def project(places: list[float], mass: list[float]) -> list[float]:
    return project_categorical(torch.tensor([places]), torch.tensor([mass]), SUPPORT)[0].tolist()


class TestProjection:
    def test_a_place_between_atoms_is_shared_by_nearness(self) -> None:
        assert project([0.25], [1.0]) == [0.75, 0.25, 0.0, 0.0]

    def test_a_place_on_an_atom_keeps_its_mass_there(self) -> None:
        # Where floor and ceiling agree, a careless projection gives 0 to both.
        for i in range(4):
            assert project([float(i)], [1.0]) == [float(i == j) for j in range(4)]

    def test_places_outside_go_to_the_ends(self) -> None:
        assert project([-7.0, 9.0], [0.25, 0.75]) == [0.25, 0.0, 0.0, 0.75]

    def test_masses_add_up(self) -> None:
        # 0.4 at 1.5 -> 0.2, 0.2; 0.6 at 2 -> 0.6
        assert project([1.5, 2.0], [0.4, 0.6]) == pytest.approx([0.0, 0.2, 0.8, 0.0])

    def test_mass_and_mean_are_kept_inside_the_support(self) -> None:
        torch.manual_seed(0)
        support = torch.linspace(-10.0, 10.0, 51)
        places = 18.0 * torch.rand(16, 30) - 9.0
        mass = torch.rand(16, 30).softmax(1)
        found = project_categorical(places, mass, support)
        torch.testing.assert_close(found.sum(1), torch.ones(16))
        torch.testing.assert_close(found @ support, (places * mass).sum(1), rtol=1e-4, atol=1e-4)
        outside = project_categorical(places * 10, mass, support)
        torch.testing.assert_close(outside.sum(1), torch.ones(16))

    def test_a_terminal_projects_its_reward_alone(self) -> None:
        one, half = torch.ones(2), torch.tensor([0.5, 0.5])
        places = atom_targets(one, half, torch.tensor([1.0, 0.0]), SUPPORT)
        assert places.tolist() == [[1.0, 1.0, 1.0, 1.0], [1.0, 1.5, 2.0, 2.5]]
        mass = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(2, 1)
        found = project_categorical(places, mass, SUPPORT)
        assert found[0].tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0])
        # 0.1 at 1; 0.2 at 1.5; 0.3 at 2; 0.4 at 2.5
        assert found[1].tolist() == pytest.approx([0.0, 0.2, 0.6, 0.2])


class TestDivergence:
    def test_by_hand(self) -> None:
        target = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
        logits = torch.log(torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.25, 0.25]]))
        # 0.5 log(0.5 / 0.25) + 0.5 log(0.5 / 0.5); log(1 / 0.5)
        expected = [0.5 * math.log(2.0), math.log(2.0)]
        assert categorical_kl(target, logits).tolist() == pytest.approx(expected)

    def test_nothing_where_they_agree(self) -> None:
        logits = torch.tensor([[3.0, -1.0, 0.5]])
        assert categorical_kl(logits.softmax(1), logits).item() == pytest.approx(0.0, abs=1e-6)

    def test_gradient_is_that_of_the_cross_entropy(self) -> None:
        target = torch.tensor([[0.0, 0.3, 0.7]])
        logits = torch.tensor([[1.0, 2.0, -1.0]], requires_grad=True)
        categorical_kl(target, logits).sum().backward()
        assert logits.grad is not None
        torch.testing.assert_close(logits.grad, logits.detach().softmax(1) - target)


class TestChoice:
    ATOMS = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])  # [B, A, K]

    def test_atoms_of_an_action(self) -> None:
        assert action_atoms(self.ATOMS, torch.tensor([1, 0])).tolist() == [[3.0, 4.0], [5.0, 6.0]]

    def test_atoms_of_the_preferred_action(self) -> None:
        values = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
        assert greedy_atoms(values, self.ATOMS).tolist() == [[1.0, 2.0], [7.0, 8.0]]

    def test_atoms_of_the_preferred_valid_action(self) -> None:
        values = torch.tensor([[2.0, 1.0], [0.0, 1.0]])
        mask = torch.tensor([[0, 1], [1, 1]])
        assert greedy_atoms(values, self.ATOMS, mask).tolist() == [[3.0, 4.0], [7.0, 8.0]]

    def test_values_however_low_are_above_masked_ones(self) -> None:
        values = torch.tensor([[5.0, -2e8], [5.0, -2e8]])
        mask = torch.tensor([[0, 1], [0, 0]])  # a row that allows nothing counts as unmasked
        assert greedy_atoms(values, self.ATOMS, mask).tolist() == [[3.0, 4.0], [5.0, 6.0]]


def test_midpoints() -> None:
    assert quantile_midpoints(2).tolist() == [0.25, 0.75]
    assert quantile_midpoints(1).tolist() == [0.5]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="mass"):
        project_categorical(torch.ones(2, 3), torch.ones(2, 1), SUPPORT)
    with pytest.raises(ValueError, match="atoms"):
        action_atoms(torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="discount"):
        atom_targets(torch.ones(2), torch.ones(2, 1), torch.ones(2), SUPPORT)
