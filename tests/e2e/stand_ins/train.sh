#!/bin/bash
# In place of Marian, which no package index has: a program that writes Marian's files as Marian does.
exec python "$(dirname "$0")/../../integration/fake_marian.py" 60 20
