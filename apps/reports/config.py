"""Register the callback of training runs."""

from apps.reports.sample_pictures import SamplePictures
from training.callbacks.base import CALLBACKS

CALLBACKS.add("sample_pictures", SamplePictures)
