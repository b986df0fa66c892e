"""Designs, the laws that cohorts are drawn from, and their recipes: one file each."""

from typing import TYPE_CHECKING

import fedcohort.baselines as baselines
from fedcohort._lazy import attach

if TYPE_CHECKING:
    from fedcohort.baselines import *  # noqa: F403 - each name is listed once, there
    from fedcohort.designs.auto import Auto, AutoDesign
    from fedcohort.designs.balanced import Balanced, BalancedDesign
    from fedcohort.designs.base import Design, RowDesign, count_matrix, drawable_clients
    from fedcohort.designs.catalogue import RECIPES, make_recipe, recipe_of
    from fedcohort.designs.function_recipe import FunctionDesign, FunctionRecipe
    from fedcohort.designs.k_vib import KVib, KVibDesign
    from fedcohort.designs.multinomial import Multinomial, MultinomialDesign
    from fedcohort.designs.osmd import OSMD, OSMDDesign
    from fedcohort.designs.poisson import CoinDesign, Poisson, PoissonDesign
    from fedcohort.designs.recipe import Knowledge, ObservedRound, Recipe, known_updates
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
            "fedcohort.baselines": " ".join(baselines.__all__),
            "function_recipe": "FunctionDesign FunctionRecipe",
            "k_vib": "KVib KVibDesign",
            "multinomial": "Multinomial MultinomialDesign",
            "osmd": "OSMD OSMDDesign",
            "poisson": "CoinDesign Poisson PoissonDesign",
            "recipe": "Knowledge ObservedRound Recipe known_updates",
            "similarity_clustered": "SimilarityClustered SimilarityClusteredDesign",
            "size_clustered": "SizeClustered SizeClusteredDesign",
            "stratified": "Stratified StratifiedDesign",
            "target": "Target TargetDesign",
            "tournament": "Tournament TournamentDesign",
        },
    )

__all__ = [
    "OSMD",
    "RECIPES",
    "Auto",
    "AutoDesign",
    "Balanced",
    "BalancedDesign",
    "CoinDesign",
    "Design",
    "FunctionDesign",
    "FunctionRecipe",
    "KVib",
    "KVibDesign",
    "Knowledge",
    "Multinomial",
    "MultinomialDesign",
    "OSMDDesign",
    "ObservedRound",
    "Poisson",
    "PoissonDesign",
    "Recipe",
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
    "count_matrix",
    "drawable_clients",
    "known_updates",
    "make_recipe",
    "recipe_of",
]
__all__ += baselines.__all__
