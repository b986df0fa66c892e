"""The laws that cohorts are drawn from, one file each, and their recipes."""

from fedcohort.designs.auto import Auto, AutoDesign
from fedcohort.designs.balanced import Balanced, BalancedDesign
from fedcohort.designs.base import Design
from fedcohort.designs.catalogue import RECIPES, make_recipe, recipe_of
from fedcohort.designs.multinomial import Multinomial, MultinomialDesign
from fedcohort.designs.poisson import Poisson, PoissonDesign
from fedcohort.designs.recipe import Knowledge, Memory, Recipe
from fedcohort.designs.rows import RowDesign
from fedcohort.designs.similarity_clustered import SimilarityClustered, SimilarityClusteredDesign
from fedcohort.designs.size_clustered import SizeClustered, SizeClusteredDesign
from fedcohort.designs.target import Target, TargetDesign
from fedcohort.designs.tournament import Tournament, TournamentDesign
from fedcohort.designs.uniform import Uniform, UniformDesign

__all__ = [
    "RECIPES",
    "Auto",
    "AutoDesign",
    "Balanced",
    "BalancedDesign",
    "Design",
    "Knowledge",
    "Memory",
    "Multinomial",
    "MultinomialDesign",
    "Poisson",
    "PoissonDesign",
    "Recipe",
    "RowDesign",
    "SimilarityClustered",
    "SimilarityClusteredDesign",
    "SizeClustered",
    "SizeClusteredDesign",
    "Target",
    "TargetDesign",
    "Tournament",
    "TournamentDesign",
    "Uniform",
    "UniformDesign",
    "make_recipe",
    "recipe_of",
]
