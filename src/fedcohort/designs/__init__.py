"""The laws that cohorts are drawn from, one file each, and their recipes."""

from typing import TYPE_CHECKING

from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.designs.auto import Auto, AutoDesign
    from fedcohort.designs.balanced import Balanced, BalancedDesign
    from fedcohort.designs.base import Design, RowDesign, count_matrix, drawable_clients
    from fedcohort.designs.catalogue import RECIPES, make_recipe, recipe_of
    from fedcohort.designs.chosen import ChosenDesign
    from fedcohort.designs.cohort_mean import CohortMean, CohortMeanDesign
    from fedcohort.designs.deadline import Deadline, DeadlineDesign
    from fedcohort.designs.divfl import DivFL, DivFLDesign
    from fedcohort.designs.first_responders import FirstResponders, FirstRespondersDesign
    from fedcohort.designs.function_recipe import FunctionDesign, FunctionRecipe
    from fedcohort.designs.multinomial import Multinomial, MultinomialDesign
    from fedcohort.designs.norm_optimal import NormOptimal, NormOptimalDesign
    from fedcohort.designs.oort import Oort, OortDesign, OortOptions
    from fedcohort.designs.poisson import Poisson, PoissonDesign
    from fedcohort.designs.power_of_choice import PowerOfChoice, PowerOfChoiceDesign
    from fedcohort.designs.recipe import Knowledge, Recipe, known_updates
    from fedcohort.designs.round_robin import RoundRobin, RoundRobinDesign
    from fedcohort.designs.similarity_clustered import (
        SimilarityClustered,
        SimilarityClusteredDesign,
    )
    from fedcohort.designs.size_clustered import SizeClustered, SizeClusteredDesign
    from fedcohort.designs.stratified import Stratified, StratifiedDesign
    from fedcohort.designs.target import Target, TargetDesign
    from fedcohort.designs.tournament import Tournament, TournamentDesign
    from fedcohort.designs.uniform import Uniform, UniformDesign
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "auto": "Auto AutoDesign",
            "balanced": "Balanced BalancedDesign",
            "base": "Design RowDesign count_matrix drawable_clients",
            "catalogue": "RECIPES make_recipe recipe_of",
            "chosen": "ChosenDesign",
            "cohort_mean": "CohortMean CohortMeanDesign",
            "deadline": "Deadline DeadlineDesign",
            "divfl": "DivFL DivFLDesign",
            "first_responders": "FirstResponders FirstRespondersDesign",
            "function_recipe": "FunctionDesign FunctionRecipe",
            "multinomial": "Multinomial MultinomialDesign",
            "norm_optimal": "NormOptimal NormOptimalDesign",
            "oort": "Oort OortDesign OortOptions",
            "poisson": "Poisson PoissonDesign",
            "power_of_choice": "PowerOfChoice PowerOfChoiceDesign",
            "recipe": "Knowledge Recipe known_updates",
            "round_robin": "RoundRobin RoundRobinDesign",
            "similarity_clustered": "SimilarityClustered SimilarityClusteredDesign",
            "size_clustered": "SizeClustered SizeClusteredDesign",
            "stratified": "Stratified StratifiedDesign",
            "target": "Target TargetDesign",
            "tournament": "Tournament TournamentDesign",
            "uniform": "Uniform UniformDesign",
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
