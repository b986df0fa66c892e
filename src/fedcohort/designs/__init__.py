"""The laws that cohorts are drawn from, one file each, and their recipes."""

from fedcohort.designs.auto import Auto, AutoDesign
from fedcohort.designs.balanced import Balanced, BalancedDesign
from fedcohort.designs.base import Design, RowDesign
from fedcohort.designs.catalogue import RECIPES, make_recipe, recipe_of
from fedcohort.designs.chosen import ChosenDesign
from fedcohort.designs.cohort_mean import CohortMean, CohortMeanDesign
from fedcohort.designs.deadline import Deadline, DeadlineDesign
from fedcohort.designs.divfl import DivFL, DivFLDesign
from fedcohort.designs.first_responders import FirstResponders, FirstRespondersDesign
from fedcohort.designs.multinomial import Multinomial, MultinomialDesign
from fedcohort.designs.norm_optimal import NormOptimal, NormOptimalDesign
from fedcohort.designs.oort import Oort, OortDesign, OortOptions
from fedcohort.designs.poisson import Poisson, PoissonDesign
from fedcohort.designs.power_of_choice import PowerOfChoice, PowerOfChoiceDesign
from fedcohort.designs.recipe import Knowledge, Memory, Recipe
from fedcohort.designs.round_robin import RoundRobin, RoundRobinDesign
from fedcohort.designs.similarity_clustered import SimilarityClustered, SimilarityClusteredDesign
from fedcohort.designs.size_clustered import SizeClustered, SizeClusteredDesign
from fedcohort.designs.stratified import Stratified, StratifiedDesign
from fedcohort.designs.target import Target, TargetDesign
from fedcohort.designs.tournament import Tournament, TournamentDesign
from fedcohort.designs.uniform import Uniform, UniformDesign

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
    "Knowledge",
    "Memory",
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
    "make_recipe",
    "recipe_of",
]
