"""Numbers of the DWARF format (DWARF 5, section 7; GNU extensions by their usual names).

Plain constants: both the compiled scan and the readers in Python use them.
"""

from __future__ import annotations

# Tags (table 7.3).
TAG_CLASS = 0x02
TAG_ENTRY_POINT = 0x03
TAG_ENUMERATION = 0x04
TAG_LEXICAL_BLOCK = 0x0B
TAG_COMPILE_UNIT = 0x11
TAG_STRUCTURE = 0x13
TAG_TYPEDEF = 0x16
TAG_UNION = 0x17
TAG_INLINED_SUBROUTINE = 0x1D
TAG_MODULE = 0x1E
TAG_WITH = 0x22
TAG_BASE_TYPE = 0x24
TAG_CATCH = 0x25
TAG_SUBPROGRAM = 0x2E
TAG_TRY = 0x32
TAG_VARIABLE = 0x34
TAG_NAMESPACE = 0x39
TAG_PARTIAL_UNIT = 0x3C
TAG_TYPE_UNIT = 0x41
TAG_SKELETON_UNIT = 0x4A

# Attributes (table 7.5).
AT_SIBLING = 0x01
AT_NAME = 0x03
AT_BYTE_SIZE = 0x0B
AT_STMT_LIST = 0x10
AT_LOW_PC = 0x11
AT_HIGH_PC = 0x12
AT_LANGUAGE = 0x13
AT_COMP_DIR = 0x1B
AT_INLINE = 0x20
AT_ABSTRACT_ORIGIN = 0x31
AT_DECL_FILE = 0x3A
AT_DECL_LINE = 0x3B
AT_DECLARATION = 0x3C
AT_SPECIFICATION = 0x47
AT_ENTRY_PC = 0x52
AT_RANGES = 0x55
AT_CALL_FILE = 0x58
AT_CALL_LINE = 0x59
AT_STR_OFFSETS_BASE = 0x72
AT_ADDR_BASE = 0x73
AT_RNGLISTS_BASE = 0x74
AT_DWO_NAME = 0x76
AT_GNU_DWO_NAME = 0x2130
AT_GNU_ADDR_BASE = 0x2133

# Forms (table 7.6).
FORM_ADDR = 0x01
FORM_BLOCK2 = 0x03
FORM_BLOCK4 = 0x04
FORM_DATA2 = 0x05
FORM_DATA4 = 0x06
FORM_DATA8 = 0x07
FORM_STRING = 0x08
FORM_BLOCK = 0x09
FORM_BLOCK1 = 0x0A
FORM_DATA1 = 0x0B
FORM_FLAG = 0x0C
FORM_SDATA = 0x0D
FORM_STRP = 0x0E
FORM_UDATA = 0x0F
FORM_REF_ADDR = 0x10
FORM_REF1 = 0x11
FORM_REF2 = 0x12
FORM_REF4 = 0x13
FORM_REF8 = 0x14
FORM_REF_UDATA = 0x15
FORM_INDIRECT = 0x16
FORM_SEC_OFFSET = 0x17
FORM_EXPRLOC = 0x18
FORM_FLAG_PRESENT = 0x19
FORM_STRX = 0x1A
FORM_ADDRX = 0x1B
FORM_REF_SUP4 = 0x1C
FORM_STRP_SUP = 0x1D
FORM_DATA16 = 0x1E
FORM_LINE_STRP = 0x1F
FORM_REF_SIG8 = 0x20
FORM_IMPLICIT_CONST = 0x21
FORM_LOCLISTX = 0x22
FORM_RNGLISTX = 0x23
FORM_REF_SUP8 = 0x24
FORM_STRX1 = 0x25
FORM_STRX2 = 0x26
FORM_STRX3 = 0x27
FORM_STRX4 = 0x28
FORM_ADDRX1 = 0x29
FORM_ADDRX2 = 0x2A
FORM_ADDRX3 = 0x2B
FORM_ADDRX4 = 0x2C
FORM_GNU_ADDR_INDEX = 0x1F01
FORM_GNU_STR_INDEX = 0x1F02
FORM_GNU_REF_ALT = 0x1F20
FORM_GNU_STRP_ALT = 0x1F21

# Unit types (table 7.2).
UT_COMPILE = 1
UT_TYPE = 2
UT_PARTIAL = 3
UT_SKELETON = 4
UT_SPLIT_COMPILE = 5
UT_SPLIT_TYPE = 6

# Range list entries (table 7.30).
RLE_END = 0
RLE_BASE_ADDRESSX = 1
RLE_STARTX_ENDX = 2
RLE_STARTX_LENGTH = 3
RLE_OFFSET_PAIR = 4
RLE_BASE_ADDRESS = 5
RLE_START_END = 6
RLE_START_LENGTH = 7

# Line number header entry formats (table 7.27).
LNCT_PATH = 1
LNCT_DIRECTORY_INDEX = 2

# Languages whose structures hold no functions (table 7.17): C89, C, C99, C11, C17, assembler.
C_LANGUAGES = (0x01, 0x02, 0x0C, 0x1D, 0x2C, 0x31, 0x8001)

# Inline attribute (table 7.20): 0 is "not inlined and not declared so".
INL_NOT_INLINED = 0

# Where the text of a string is: the high bits of a string key (the low ones are the offset).
KEY_SHIFT = 48
KEY_STR = 1
KEY_LINE_STR = 2
KEY_INFO = 3
KEY_LINE = 4

# Classes of attribute values (DWARF 5, section 7.5.5), as value() gives them.
CLASS_CONST = 0
CLASS_ADDRESS = 1
CLASS_REFERENCE = 2
CLASS_STRING = 3
CLASS_OFFSET = 4
CLASS_BLOCK = 5
CLASS_RANGE_INDEX = 6
CLASS_OTHER = 7

# Kinds of named types in the index.
KIND_STRUCTURE, KIND_UNION, KIND_ENUMERATION, KIND_TYPEDEF, KIND_BASE = 1, 2, 3, 4, 5

# What may be wrong with a unit; the compiled code returns these, negative.
FULL, FULL_ABBREVIATIONS = 100, 101
TROUBLE = {
    1: "it is cut off inside an entry",
    2: "an attribute has a form that DWARF 5 does not have",
    3: "it refers to an alternate debug file (made by dwz -m)",
    4: "its abbreviations are damaged or missing",
    5: "a reference leads outside .debug_info",
    6: "its entries are nested too deeply",
    7: "a range list is damaged",
    8: "its line table's file names are damaged",
    9: "a string lies outside its section",
    10: "its header is damaged",
    11: "it is of a version other than DWARF 2 to 5",
    12: "it is split DWARF: its entries are in a .dwo file",
    13: "its lists are longer than the sections they are in",
    14: "a sibling reference leads backwards or out of the unit",
    15: "an address index lies outside .debug_addr",
    16: "an offset leads outside the section it means",
}
E_CUT, E_FORM, E_ALT, E_ABBREV, E_REF, E_DEPTH, E_RANGES, E_LINE = 1, 2, 3, 4, 5, 6, 7, 8
E_STRING, E_HEADER, E_VERSION, E_SPLIT, E_WORK, E_SIBLING, E_ADDRX, E_OFFSET = range(9, 17)

# Columns of a unit's row.
(
    U_OFFSET, U_END, U_FIRST, U_VERSION, U_OFFSIZE, U_ADDRSIZE, U_ABBREV, U_STR_BASE,
    U_ADDR_BASE, U_RNG_BASE, U_LOW, U_STMT, U_COMP_DIR, U_C_LIKE, U_SLOT, U_SLOTS, U_KIND,
) = range(17)  # fmt: skip
U_COLUMNS = 17
