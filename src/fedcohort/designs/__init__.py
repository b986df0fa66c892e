"""Designs, the laws that cohorts are drawn from, and their recipes: one file each."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.baselines.chosen import ChosenDesign
    from fedcohort.baselines.cohort_mean import CohortMean, CohortMeanDesign
    from fedcohort.baselines.deadline import Deadline, DeadlineDesign
    from fedcohort.baselines.divfl import DivFL, DivFLDesign
    from fedcohort.baselines.first_responders import FirstResponders, FirstRespondersDesign
    from fedcohort.baselines.norm_optimal import NormOptimal, NormOptimalDesign
    from fedcohort.baselines.oort import Oort, OortDesign, OortOptions
    from fedcohort.baselines.power_of_choice import PowerOfChoice, PowerOfChoiceDesign
    from fedcohort.baselines.round_robin import RoundRobin, RoundRobinDesign
    from fedcohort.baselines.uniform import Uniform, UniformDesign
    from fedcohort.designs.auto import Auto, AutoDesign
    from fedcohort.designs.balanced import Balanced, BalancedDesign
    from fedcohort.designs.base import Design, RowDesign, count_matrix, drawable_clients
    from fedcohort.designs.catalogue import RECIPES, make_recipe, recipe_of
    from fedcohort.designs.function_recipe import FunctionDesign, FunctionRecipe
    from fedcohort.designs.multinomial import Multinomial, MultinomialDesign
    from fedcohort.designs.poisson import Poisson, PoissonDesign
    from fedcohort.designs.recipe import Knowledge, Recipe, known_updates
    from fedcohort.designs.similarity_clustered import (
        SimilarityClustered,
        SimilarityClusteredDesign,
    )
    from fedcohort.designs.size_clustered import SizeClustered, SizeClusteredDesign
    from fedcohort.designs.stratified import Stratified, StratifiedDesign
    from fedcohort.designs.target import Target, TargetDesign
    from fedcohort.designs.tournament import Tournament, TournamentDesign
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "auto": "Auto AutoDesign",
            "balanced": "Balanced BalancedDesign",
            "base": "Design RowDesign count_matrix drawable_clients",
            "catalogue": "RECIPES make_recipe recipe_of",
            "fedcohort.baselines.chosen": "ChosenDesign",
            "fedcohort.baselines.cohort_mean": "CohortMean CohortMeanDesign",
            "fedcohort.baselines.deadline": "Deadline DeadlineDesign",
            "fedcohort.baselines.divfl": "DivFL DivFLDesign",
            "fedcohort.baselines.first_responders": "FirstResponders FirstRespondersDesign",
            "function_recipe": "FunctionDesign FunctionRecipe",
            "multinomial": "Multinomial MultinomialDesign",
            "fedcohort.baselines.norm_optimal": "NormOptimal NormOptimalDesign",
            "fedcohort.baselines.oort": "Oort OortDesign OortOptions",
            "poisson": "Poisson PoissonDesign",
            "fedcohort.baselines.power_of_choice": "PowerOfChoice PowerOfChoiceDesign",
            "recipe": "Knowledge Recipe known_updates",
            "fedcohort.baselines.round_robin": "RoundRobin RoundRobinDesign",
            "similarity_clustered": "SimilarityClustered SimilarityClusteredDesign",
            "size_clustered": "SizeClustered SizeClusteredDesign",
            "stratified": "Stratified StratifiedDesign",
            "target": "Target TargetDesign",
            "tournament": "Tournament TournamentDesign",
            "fedcohort.baselines.uniform": "Uniform UniformDesign",
        },
    )

__all__ = [
    "RECIPES",
    "Auto",
    "AutoDesign",
    "Balanced",
    "BalancedDesign",
    "ChosenDesign",
    "CohortMean",
    "CohortMeanDesign",
    "Deadline",
    "DeadlineDesign",
    "Design",
    "DivFL",
    "DivFLDesign",
    "FirstResponders",
    "FirstRespondersDesign",
    "FunctionDesign",
    "FunctionRecipe",
    "Knowledge",
    "Multinomial",
    "MultinomialDesign",
    "NormOptimal",
    "NormOptimalDesign",
    "Oort",
    "OortDesign",
    "OortOptions",
    "Poisson",
    "PoissonDesign",
    "PowerOfChoice",
    "PowerOfChoiceDesign",
    "Recipe",
    "RoundRobin",
    "RoundRobinDesign",
    "RowDesign",
    "SimilarityClustered",
    "SimilarityClusteredDesign",
    "SizeClustered",
    "SizeClusteredDesign",
    "Stratified",
    "StratifiedDesign",
    "Target",
    "TargetDesign",
    "Tournament",
    "TournamentDesign",
    "Uniform",
    "UniformDesign",
    "count_matrix",
    "drawable_clients",
    "known_updates",
    "make_recipe",
    "recipe_of",
]
