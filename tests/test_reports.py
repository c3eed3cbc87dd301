"""Reports: the numbers in them are the tape's, the trace is one that viewers take, and the page works in a browser."""

import collections
import gzip
import json
import re

import numpy
import pytest
from generated_check import WORLD, attach_buffer, function, inputs, plainly
from mpi4py import MPI
from page_browser import look

import ampi
import ampi.numpy as np
from ampi import reports
from ampi.mpi.messages import Sent
from ampi.mpi.namespace import BASE
from ampi.reports import figures as shown
from ampi.reports import tracer as tracing_module
