"""Completion of kinst's command lines in bash and zsh: what can be inserted at the cursor.

A shell's function (kinst.bash, _kinst) runs `kinst --complete` at each press of TAB, and gets an
answer in a tenth of a second. So `answer` and the modules that it always needs (`line`, `program`,
`index`, `places`) import little, and only from the standard library. They read files that `prepare`
has saved in the cache folder: the words of kinst, from the tables of options, commands and D; and
an index for each kernel that was used. If a file is missing or outdated, `prepare` makes it before
the answer.
"""
