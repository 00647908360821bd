"""Completion of kinst's command lines in bash and zsh: what can be inserted at the cursor.

A shell's function (kinst.bash, _kinst) runs `kinst --complete` at each press of TAB, and gets an
answer in a tenth of a second. So `answer` and the modules that it always needs (`line`, `program`,
`index`, `places`) import little, and only from the standard library. They read two kinds of files
in the cache folder: one with the words of kinst (options, commands, D), and an index of names for
each kernel that was used. `prepare` makes these files. If a file is missing or outdated, it is made
before the answer.
"""
