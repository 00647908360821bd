"""Bad programs: each with libdtrace's tag, the place, and a part of the message.

Columns are counted by hand, from 1.  Every program of BODIES is put into BEGIN { ... }, which is 8
characters long, so a body's first character is column 9.
"""

from __future__ import annotations

import pytest

from kinst.dlang.api import Macros
from tests.dlang.dhelp import error

HEAD = "BEGIN { "
# body, tag, column in the body from 1, part of the message
BODIES = [
    # syntax
    ("a = ;", "D_SYNTAX", 5, 'near ";"'),
    ("a b;", "D_SYNTAX", 3, 'near "b"'),
    ("(1;", "D_SYNTAX", 3, 'near ";"'),
    ("1);", "D_SYNTAX", 2, 'near ")"'),
    ("x[];", "D_SYNTAX", 2, 'near "]"'),
    ("trace(1", "D_SYNTAX", 8, "near end of input"),
    ("1 +", "D_SYNTAX", 4, "near end of input"),
    ("1 ? 2;", "D_SYNTAX", 6, 'near ";"'),
    ("trace(1,);", "D_SYNTAX", 9, 'near ")"'),
    ("a = 1 2;", "D_SYNTAX", 7, 'near "2"'),
    ("while (1) {}", "D_SYNTAX", 1, 'near "while"'),
    ("int x;", "D_SYNTAX", 1, 'near "int"'),
    ("uint64_t;", "D_SYNTAX", 1, 'near "uint64_t"'),
    ("a = \x01;", "D_SYNTAX", 5, 'near "\\001"'),
    ("a = é;", "D_SYNTAX", 5, 'near "é"'),
    ("a = 1 # 2;", "D_SYNTAX", 7, 'near "#"'),
    ("a = 1.5;", "D_SYNTAX", 5, "floating-point constants are not permitted"),
    ("a = .5;", "D_SYNTAX", 5, "floating-point"),
    ("a = 1e3;", "D_SYNTAX", 5, "floating-point"),
    ("/* x /* y */", "D_SYNTAX", 6, "/* encountered inside a comment"),
    ("/* x", "D_SYNTAX", 1, "end-of-file encountered before matching */"),
    ('trace("abc);', "D_SYNTAX", 7, "end-of-file encountered in string literal"),
    ("x.1;", "D_SYNTAX", 2, "floating-point"),
    ("x->5;", "D_OP_IDENT", 4, "operator -> must be followed by an identifier"),
    # constants
    ("a = 08;", "D_INT_DIGIT", 5, "constant 08 contains invalid digit 8"),
    ("a = 18446744073709551616;", "D_INT_OFLOW", 5, "results in integer overflow"),
    ("a = 0x10000000000000000;", "D_INT_OFLOW", 5, "results in integer overflow"),
    ("a = 9223372036854775808;", "D_INT_OFLOW", 5, "cannot be represented"),
    ("a = " + "9" * 9000 + ";", "D_INT_OFLOW", 5, "results in integer overflow"),
    ("a = '';", "D_CHR_NULL", 5, "empty character constant"),
    ("a = '123456789';", "D_CHR_OFLOW", 5, "character constant is too long"),
    ("a = 'x\n';", "D_CHR_NL", 5, "newline encountered in character constant"),
    ('a = "x\n";', "D_STR_NL", 5, "newline encountered in string literal"),
    # names
    ("trace(nope);", "D_IDENT_UNDEF", 7, "failed to resolve nope: Unknown variable name"),
    ("x = x + 1;", "D_VAR_UNDEF", 5, "x has not yet been declared or assigned"),
    ("x += 1;", "D_VAR_UNDEF", 1, "x has not yet been declared or assigned"),
    ("x = (y = y);", "D_VAR_UNDEF", 10, "y has not yet"),
    ("trace(count);", "D_IDENT_BADREF", 7, "aggregating function 'count' may not be"),
    ("trace(trace);", "D_IDENT_BADREF", 7, "tracing function 'trace' may not be referenced"),
    ("trace(regs);", "D_IDENT_BADREF", 7, "associative array 'regs' may not be"),
    ("count = 1;", "D_IDENT_BADREF", 1, "aggregating function 'count'"),
    ("trace(args[0]);", "D_ARGS_IDX", 7, "is out of range for"),
    ("trace(`jiffies);", "D_IDENT_UNDEF", 7, "failed to resolve `jiffies: Unknown symbol name"),
    ("trace(x[1]);", "D_IDENT_UNDEF", 7, "failed to resolve x"),
    ("trace(this->x);", "D_VAR_UNDEF", 7, "this->x has not yet been declared or assigned"),
    ("trace(curthread->pid);", "D_OP_SOU", 7, "operator -> cannot be applied to pointer to type"),
    ("trace(nope->pid);", "D_IDENT_UNDEF", 7, "nope"),
    ("x = (struct no *)arg0; x->f;", "D_OP_INCOMPLETE", 24, "no struct no definition is"),
    ("x = (float)arg0;", "D_CAST_INVAL", 5, "invalid cast expression"),
    ("x = (unsigned void)1;", "D_DECL_VOIDATTR", 6, "attributes may not be used with void"),
    ("x = (short long)1;", "D_UNKNOWN", 6, "failed to resolve type short long"),
    ("x = (long short)1;", "D_UNKNOWN", 6, "failed to resolve type long short"),
    ("x = sizeof (string *);", "D_UNKNOWN", 13, "pointers to string"),
    # functions
    ("nope();", "D_FUNC_UNDEF", 1, "undefined function name: nope"),
    ("pid();", "D_FUNC_IDKIND", 1, "scalar 'pid' may not be referenced as a function"),
    ("x = 1; x();", "D_FUNC_IDKIND", 8, "scalar 'x' may not be referenced as a function"),
    ("(1)();", "D_FUNC_IDENT", 2, "function designator is not of function type"),
    ("x = trace(1);", "D_OP_INCOMPAT", 1, 'operands have incompatible types: "void" = "void"'),
    ("(void)trace(1);", "D_CG_EXPR", 7, "tracing function trace( ) may not be called from a D"),
    ("x = count();", "D_OP_INCOMPAT", 1, 'operands have incompatible types: "void" = "void"'),
    ("count();", "D_CG_EXPR", 1, "aggregating function count( )"),
    ("trace(1), trace(2);", "D_OP_ACT", 1, "operator , operands cannot be actions"),
    ("pid ? trace(1) : trace(2);", "D_OP_ACT", 7, "action cannot be used in a conditional"),
    # operators
    ("x = ~execname;", "D_OP_INT", 5, "operator ~ requires an operand of integral type"),
    ("x = -execname;", "D_OP_ARITH", 5, "operator - requires an operand of arithmetic type"),
    ("x = -curthread;", "D_OP_ARITH", 5, "operator - requires"),
    ("x = !execname;", "D_OP_SCALAR", 5, "operator ! requires an operand of scalar type"),
    ("x = execname & 1;", "D_OP_INT", 5, "operator & requires operands of integral type"),
    ("x = 1 << execname;", "D_OP_INT", 5, "operator << requires operands of integral type"),
    ("x = curthread % 2;", "D_OP_INT", 5, "operator % requires operands of integral type"),
    ("x = execname * 2;", "D_OP_ARITH", 5, "operator * requires operands of arithmetic type"),
    ("x = execname && 1;", "D_OP_SCALAR", 5, "operator && requires operands of scalar type"),
    ("x = 1 ^^ execname;", "D_OP_SCALAR", 5, "operator ^^ requires operands of scalar type"),
    ("x = execname + execname;", "D_OP_INCOMPAT", 5, 'incompatible types: "string" + "string"'),
    ("x = curthread + 1;", "D_OP_INCOMPAT", 5, 'incompatible types: "void *" + "int"'),
    ("x = 1 - (char *)arg0;", "D_OP_INCOMPAT", 5, 'incompatible types: "int" - "char *"'),
    ("x = execname == 1;", "D_OP_INCOMPAT", 5, 'incompatible types: "string" == "int"'),
    ("x = curthread == \"a\";", "D_OP_INCOMPAT", 5, 'incompatible types: "void *" == "string"'),
    ("x = (char *)arg0 < (int *)arg1;", "D_OP_INCOMPAT", 5, '"char *" < "int *"'),
    ("x = 1 / 0;", "D_DIV_ZERO", 5, "expression contains division by zero"),
    ("x = pid % 0;", "D_DIV_ZERO", 5, "expression contains division by zero"),
    ("x = 5; x /= 1 - 1;", "D_DIV_ZERO", 8, "expression contains division by zero"),
    ("x = *pid;", "D_DEREF_NONPTR", 5, "cannot dereference non-pointer type"),
    ("x = *curthread;", "D_DEREF_VOID", 5, "cannot dereference pointer to void"),
    ("x = pid[1];", "D_DEREF_NONPTR", 5, "cannot dereference non-pointer type"),
    ("p = (char *)0; x = p[1, 2];", "D_ARR_BADREF", 20, "cannot access p as an associative"),
    ("x = &pid;", "D_ADDROF_VAR", 5, "cannot take address of dynamic variable"),
    ("x = &regs[R_RAX];", "D_ADDROF_VAR", 5, "cannot take address of dynamic variable"),
    ("x = &(1 + 2);", "D_ADDROF_LVAL", 5, "unacceptable operand for unary & operator"),
    ("x = &@a;", "D_ADDROF_VAR", 5, "cannot take address of dynamic variable"),
    ("pid = 1;", "D_OP_WRITE", 1, "operator = can only be applied to a writable variable"),
    ("pid++;", "D_OP_WRITE", 1, "operator ++ can only be applied to a writable variable"),
    ("R_RAX = 1;", "D_OP_WRITE", 1, "operator = can only be applied"),
    ("x = (regs[R_RAX] = 1);", "D_OP_WRITE", 6, "operator = can only be applied"),
    ("curthread = 0;", "D_OP_WRITE", 1, "operator = can only be applied"),
    ("1 = 2;", "D_OP_LVAL", 1, "operator = requires modifiable lvalue as an operand"),
    ("(1 + 2)++;", "D_OP_LVAL", 2, "operator ++ requires modifiable lvalue"),
    ("s = execname; s++;", "D_OP_SCALAR", 15, "operator ++ requires operand of scalar type"),
    ("v = curthread; v++;", "D_OP_VFPTR", 16, "operator ++ requires an operand of known size"),
    ("v = curthread; v += 1;", "D_OP_VFPTR", 16, "operator += requires left-hand scalar"),
    ("s = execname; s += 1;", "D_OP_INCOMPAT", 15, '"string" += "int"'),
    ("s = execname; s = 1;", "D_OP_INCOMPAT", 15, '"string" = "int"'),
    ("x = 1; x = execname;", "D_OP_INCOMPAT", 8, '"int" = "string"'),
    ("x = 1; x = curthread;", "D_OP_INCOMPAT", 8, '"int" = "void *"'),
    ("p = (char *)0; p = 5;", "D_OP_INCOMPAT", 16, '"char *" = "int"'),
    ("p = (char *)0; p = execname;", "D_UNKNOWN", 16, "not supported yet"),
    ("x = (void)1;", "D_OP_INCOMPAT", 1, '"void" = "void"'),
    ("x = pid ? 1 : execname;", "D_OP_INCOMPAT", 5, "operator ?: operands must have compatible"),
    ("x = execname ? 1 : 2;", "D_OP_SCALAR", 5, "operator ?: expression must be of scalar type"),
    ("x = (int)execname;", "D_CAST_INVAL", 5, 'invalid cast expression: "string" to "int"'),
    ("x = stringof((void)1);", "D_STRINGOF_TYPE", 5, "cannot apply stringof to a value of type"),
    ("x = sizeof (void);", "D_SIZEOF_TYPE", 5, "cannot apply sizeof to an operand of unknown"),
    ("x = regs[pid];", "D_PROTO_ARG", 10, "prototype: integer constant, argument: pid_t"),
    ("x = regs[99];", "D_REGS_IDX", 10, "index 99 is out of range for array regs"),
    ("x = regs[-1];", "D_REGS_IDX", 10, "index -1 is out of range for array regs"),
    ("x = regs[1, 2];", "D_PROTO_LEN", 5, "regs[ ] prototype mismatch: 2 args passed, 1"),
    ("@a = count(); x = @a + 1;", "D_OP_DYN", 19, "aggregation @a may not be used in an"),
    ("@a, 1;", "D_OP_DYN", 1, "operator , operands cannot be of dynamic type"),
    ("pid ? @a : @b;", "D_OP_DYN", 7, "operator ?: operands cannot be of dynamic type"),
    # actions
    ("trace();", "D_PROTO_LEN", 1, "trace( ) prototype mismatch: 0 args passed, 1 expected"),
    ("trace(1, 2);", "D_PROTO_LEN", 1, "trace( ) prototype mismatch: 2 args passed, 1 expected"),
    ("trace((void)1);", "D_TRACE_VOID", 7, "trace( ) may not be applied to a void expression"),
    ("trace(@a);", "D_TRACE_AGG", 7, "trace( ) may not be applied to an aggregation"),
    ("exit();", "D_PROTO_LEN", 1, "exit( ) prototype mismatch: 0 args passed, 1 expected"),
    ("exit(execname);", "D_PROTO_ARG", 6, "prototype: int, argument: string"),
    ("printf();", "D_PROTO_LEN", 1, "printf( ) prototype mismatch: 0 args passed, 1 expected"),
    ("printf(pid);", "D_PRINTF_ARG_FMT", 8, "prototype: string constant, argument: pid_t"),
    ("printf(@a);", "D_PRINTF_ARG_FMT", 8, "argument: aggregation"),
    ('printf("");', "D_PRINTF_FMT_EMPTY", 8, "printf( ) format string is empty"),
    ('printf("%d");', "D_PRINTF_ARG_PROTO", 8, "conversion #1 (%d) is missing a corresponding v"),
    ('printf("a%%%s%d", execname);', "D_PRINTF_ARG_PROTO", 8, "conversion #3 (%d) is missing"),
    ('printf("%d", 1, 2);', "D_PRINTF_ARG_EXTRA", 17, "only 1 arguments required by this"),
    ('printf("x", 1);', "D_PRINTF_ARG_EXTRA", 13, "only 0 arguments required"),
    ('printf("%d", execname);', "D_PRINTF_ARG_TYPE", 14, "argument #2 is incompatible with conv"),
    ('printf("%s", pid);', "D_PRINTF_ARG_TYPE", 14, "char [] or string (or use stringof)"),
    ('printf("%s", (char *)arg0);', "D_PRINTF_ARG_TYPE", 14, "argument: char *"),
    ('printf("%d", curthread);', "D_PRINTF_ARG_TYPE", 14, "argument: void *"),
    ('printf("%x", curthread);', "D_PRINTF_ARG_TYPE", 14, "argument: void *"),
    ('printf("%c", timestamp);', "D_PRINTF_ARG_TYPE", 14, "prototype: char, short, or int"),
    ('printf("%Y", pid);', "D_PRINTF_ARG_TYPE", 14, "prototype: int64_t"),
    ('printf("%f", pid);', "D_PRINTF_ARG_TYPE", 14, "prototype: float, double, or long double"),
    ('printf("%k", pid);', "D_PRINTF_ARG_TYPE", 14, "prototype: stack"),
    ('printf("%a", execname);', "D_PRINTF_ARG_TYPE", 14, "prototype: pointer or integer"),
    ('printf("%d", @a);', "D_PRINTF_ARG_TYPE", 14, "argument #2 is an aggregation"),
    ('printf("%@d", 1);', "D_PRINTF_AGG_CONV", 8, "%@ conversion requires an aggregation"),
    ('printf("%*d", 1);', "D_PRINTF_ARG_PROTO", 8, "conversion #1 (%d) is missing"),
    ('printf("%*d");', "D_PRINTF_DYN_PROTO", 8, 'missing a corresponding "*" argument'),
    ('printf("%.*d");', "D_PRINTF_DYN_PROTO", 8, 'missing a corresponding ".*" argument'),
    ('printf("%*d", "x", 1);', "D_PRINTF_DYN_TYPE", 15, "argument #2 is incompatible with"),
    ('printf("%");', "D_SYNTAX", 8, "conversion #1 name expected before end of format"),
    ('printf("%5%");', "D_SYNTAX", 8, "cannot be combined with other format flags: %%"),
    ('printf("%1$d", 1);', "D_SYNTAX", 8, "uses unsupported positional format (%n$)"),
    ('printf("%q", 1);', "D_SYNTAX", 8, "format conversion #1 is undefined: %q"),
    ('printf("%d%lq", 1, 1);', "D_SYNTAX", 8, "format conversion #2 is undefined: %lq"),
    ('printf("%**d", 1);', "D_SYNTAX", 8, "more than one '*' specified for the output width"),
    ('printf("%.*.d", 1);', "D_SYNTAX", 8, "more than one '.' specified"),
    ('printf("%99999999d", 1);', "D_SYNTAX", 8, "width or precision over 65535"),
    # aggregations
    ("@a;", "D_AGG_NULL", 1, "expression has null effect: @a"),
    ("@a = count(); @a;", "D_AGG_NULL", 15, "expression has null effect: @a"),
    ("@a = 1;", "D_AGG_FUNC", 6, "@a must be assigned the result of an aggregating function"),
    ("@a = trace(1);", "D_AGG_FUNC", 6, "@a must be assigned the result"),
    ("@a += count();", "D_AGG_FUNC", 7, "@a must be assigned the result"),
    ("@a = nope(1);", "D_FUNC_UNDEF", 6, "undefined function name: nope"),
    ("@a[1][2] = count();", "D_AGG_MDIM", 1, "@a as a multi-dimensional array"),
    ("@a = count(); @a = sum(1);", "D_AGG_REDEF", 15, "current: @a = sum( ), previous: @a = co"),
    ("@a[1] = count(); @a = count();", "D_PROTO_LEN", 18, "@a[ ] prototype mismatch: 0 args p"),
    ("@a[1] = count(); @a[1,2] = count();", "D_PROTO_LEN", 18, "2 args passed, 1 expected"),
    ("@[1] = count(); @[1, 2] = count();", "D_PROTO_LEN", 17, "two aggregations need two names"),
    ('@a[1] = count(); @a["x"] = count();', "D_PROTO_ARG", 21, "prototype: int, argument: string"),
    ("@a[(void)1] = count();", "D_KEY_TYPE", 4, "void expression may not be used as aggregation"),
    ("@a[1, @b] = count();", "D_KEY_TYPE", 7, "index: key #2"),
    ("@a = count(1);", "D_PROTO_LEN", 6, "count( ) prototype mismatch: 1 arg passed, 0 expected"),
    ("@a = sum();", "D_PROTO_LEN", 6, "sum( ) prototype mismatch: 0 args passed, 1 expected"),
    ("@a = max(1, 2);", "D_PROTO_LEN", 6, "max( ) prototype mismatch: 2 args passed, 1 expected"),
    ("@a = quantize();", "D_PROTO_LEN", 6, "quantize( ) prototype mismatch: 0 args passed, 1 ex"),
    ("@a = quantize(1, 2, 3);", "D_PROTO_LEN", 18, "3 args passed, at most 2 expected"),
    ("@a = avg(execname);", "D_AGG_SCALAR", 10, "avg( ) argument #1 must be of scalar type"),
    ("@a = quantize(1, execname);", "D_PROTO_ARG", 18, "increment value (argument #2) must be"),
    ("@a = lquantize(1);", "D_PROTO_LEN", 6, "lquantize( ) prototype mismatch: 1 arg passed, 3"),
    ("@a = lquantize(1, pid, 2);", "D_LQUANT_BASETYPE", 19, "argument #1 must be an integer c"),
    ('@a = lquantize(1, "x", 2);', "D_PROTO_ARG", 19, "prototype: int32_t, argument: string"),
    ("@a = lquantize(1, 1, pid);", "D_LQUANT_LIMTYPE", 22, "argument #2 must be an integer co"),
    ("@a = lquantize(1, 2147483648, 2);", "D_LQUANT_BASEVAL", 19, "32-bit quantity"),
    ("@a = lquantize(1, 0, -2147483649);", "D_LQUANT_LIMVAL", 22, "32-bit quantity"),
    ("@a = lquantize(1, 5, 2);", "D_LQUANT_MISMATCH", 6, "base (argument #1) must be less than"),
    ("@a = lquantize(1, 0, 10, 0);", "D_LQUANT_STEPTYPE", 26, "non-zero positive integer const"),
    ("@a = lquantize(1, 0, 10, pid);", "D_LQUANT_STEPTYPE", 26, "non-zero positive"),
    ("@a = lquantize(1, 0, 10, 65536);", "D_LQUANT_STEPVAL", 26, "16-bit quantity"),
    ("@a = lquantize(1, 0, 10, 11);", "D_LQUANT_STEPLARGE", 6, "at least one quantization level"),
    ("@a = lquantize(1, 0, 0);", "D_LQUANT_STEPLARGE", 6, "at least one quantization level"),
    ("@a = lquantize(1, 0, 65536);", "D_LQUANT_STEPSMALL", 6, "too small"),
    ("@a = lquantize(1,0,9); @a = lquantize(1,1,9);", "D_LQUANT_MATCHBASE", 24, "expected 0, fou"),
    ("@a = lquantize(1,0,9); @a = lquantize(1,0,8);", "D_LQUANT_MATCHLIM", 24, "found 8"),
    ("@a = lquantize(1,0,8); @a = lquantize(1,0,8,2);", "D_LQUANT_MATCHSTEP", 24, "found 2"),
    ("@a = lquantize(1,0,8,1,1,1);", "D_PROTO_LEN", 24, "6 args passed, at most 5 expected"),
    ("@a = llquantize(1, 10, 0, 6);", "D_PROTO_LEN", 6, "4 args passed, 5 expected"),
    ("@a = llquantize(1, pid, 0, 6, 20);", "D_LLQUANT_FACTORTYPE", 20, "#1 (factor) must be an i"),
    ("@a = llquantize(1, 10, pid, 6, 20);", "D_LLQUANT_LOWTYPE", 24, "#2 (low magnitude) must"),
    ("@a = llquantize(1, 10, 0, pid, 20);", "D_LLQUANT_HIGHTYPE", 27, "#3 (high magnitude) must"),
    ("@a = llquantize(1, 10, 0, 6, pid);", "D_LLQUANT_NSTEPTYPE", 30, "#4 (linear steps per mag"),
    ("@a = llquantize(1, 65536, 0, 6, 20);", "D_LLQUANT_FACTORVAL", 20, "unsigned 16-bit"),
    ("@a = llquantize(1, 10, -1, 6, 20);", "D_LLQUANT_LOWVAL", 24, "unsigned 16-bit"),
    ("@a = llquantize(1, 10, 0, 65536, 20);", "D_LLQUANT_HIGHVAL", 27, "unsigned 16-bit"),
    ("@a = llquantize(1, 10, 0, 6, 65536);", "D_LLQUANT_NSTEPVAL", 30, "unsigned 16-bit"),
    ("@a = llquantize(1, 1, 0, 6, 20);", "D_LLQUANT_FACTORSMALL", 6, "must be two or more"),
    ("@a = llquantize(1, 10, 6, 6, 20);", "D_LLQUANT_MAGRANGE", 6, "must be greater than low"),
    ("@a = llquantize(1, 10, 0, 6, 5);", "D_LLQUANT_FACTORNSTEPS", 6, "less than or equal to"),
    ("@a = llquantize(1, 10, 0, 6, 15);", "D_LLQUANT_FACTOREVEN", 6, "must evenly divide"),
    ("@a = llquantize(1, 10, 0, 20, 10);", "D_LLQUANT_MAGTOOBIG", 6, "overflows 64-bits"),
    ("@a = llquantize(1,10,0,6,10); @a = llquantize(1,10,1,6,10);", "D_LLQUANT_LOWMATCH", 31, "1"),
    ("clear();", "D_CLEAR_PROTO", 1, "clear( ) prototype mismatch: 0 args passed, 1 expected"),
    ("clear(1);", "D_CLEAR_AGGARG", 7, "prototype: aggregation, argument: int"),
    ("clear(@a);", "D_CLEAR_AGGBAD", 7, "failed to resolve @a"),
    ("@a[1] = count(); clear(@a[1]);", "D_CLEAR_AGGARG", 24, "prototype: aggregation"),
    ("trunc();", "D_TRUNC_PROTO", 1, "0 args passed, at least 1 expected"),
    ("@a = count(); trunc(@a, 1, 2);", "D_TRUNC_PROTO", 15, "3 args passed, no more than 2"),
    ("trunc(1);", "D_TRUNC_AGGARG", 7, "prototype: aggregation, argument: int"),
    ("@a = count(); trunc(@a, execname);", "D_TRUNC_SCALAR", 25, "argument #2 must be of scalar"),
    ("normalize(1);", "D_NORMALIZE_PROTO", 1, "1 args passed, 2 expected"),
    ("@a = count(); denormalize(@a, 2);", "D_NORMALIZE_PROTO", 15, "2 args passed, 1 expected"),
    ("normalize(1, 2);", "D_NORMALIZE_AGGARG", 11, "prototype: aggregation, argument: int"),
    ("@a = count(); normalize(@a, execname);", "D_NORMALIZE_SCALAR", 29, "must be of scalar"),
    ("@a = count(); normalize(@a, 0);", "D_DIV_ZERO", 29, "division by zero"),
    ("printa();", "D_PROTO_LEN", 1, "printa( ) prototype mismatch: 0 args passed, 1 expected"),
    ('printa("%@d");', "D_PRINTA_PROTO", 1, "1 args passed, 2 expected"),
    ("printa(1);", "D_PRINTA_AGGARG", 8, "prototype: aggregation, argument: int"),
    ('printa("%@d", 1);', "D_PRINTA_AGGARG", 15, "argument #2 is incompatible with prototype"),
    ("printa(@a);", "D_PRINTA_AGGBAD", 8, "failed to resolve @a"),
    ('@a[1] = count(); printa("%d %d", @a);', "D_PRINTF_ARG_PROTO", 25, "conversion #2 (%d)"),
    ('@a[1] = count(); printa("%s", @a);', "D_PRINTF_ARG_TYPE", 25, "argument: int"),
    ('@a = count(); printa("%@s", @a);', "D_PRINTF_ARG_TYPE", 22, "aggregating action is incompa"),
    ('@a = count(); printa("", @a);', "D_PRINTF_FMT_EMPTY", 22, "printa( ) format string is empty"),
    ("@a[1]=count(); @b=count(); printa(@a, @b);", "D_PRINTA_AGGKEY", 39, "@a has 1 key, @b has 0"),
    ("@a[1]=count(); @b[execname]=count(); printa(@a,@b);", "D_PRINTA_AGGPROTO", 48, "key #1 is"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "tag", "column", "message"), BODIES)
def test_body(body: str, tag: str, column: int, message: str) -> None:
    found = error(HEAD + body + " }" if not body.startswith(("trace(1", "1 +")) or body[-1] == ";"
                  else HEAD + body)  # fmt: skip
    assert (found.tag, found.span.column) == (tag, len(HEAD) + column), found
    assert found.span.line == 1
    assert message in str(found)


# program, tag, line, column, part of the message
PROGRAMS = [
    ("", "D_EMPTY", 1, 1, "empty D program translation unit"),
    ("  \n /* only */ \n", "D_EMPTY", 1, 1, "empty D program"),
    ("#pragma D option quiet\n", "D_EMPTY", 1, 1, "empty D program"),
    ("int x;\n", "D_EMPTY", 1, 1, "empty D program"),
    ("{ }", "D_SYNTAX", 1, 1, 'near "{"'),
    ("BEGIN, { }", "D_SYNTAX", 1, 8, 'near "{"'),
    ("BEGIN END { }", "D_SYNTAX", 1, 7, 'near "END"'),
    ("BEGIN /1/", "D_SYNTAX", 1, 10, "expected actions { } following probe description and pred"),
    ("BEGIN /1/ END { }", "D_SYNTAX", 1, 15, 'near "{"'),
    ("BEGIN /1 { }", "D_SYNTAX", 1, 10, 'near "{"'),
    ("BEGIN /(1/ { }", "D_SYNTAX", 1, 10, "closing ) expected in predicate before /"),
    ("BEGIN /p[1/ { }", "D_SYNTAX", 1, 11, "closing ] expected in predicate before /"),
    ("BEGIN // { }", "D_SYNTAX", 1, 8, 'near "/"'),
    ("BEGIN { };", "D_SYNTAX", 1, 10, 'near ";"'),
    ("BEGIN }", "D_SYNTAX", 1, 7, 'near "}"'),
    ("BEGIN { trace(1);\n", "D_SYNTAX", 2, 1, "near end of input"),
    ("\n\n  a:b:c:d:e { }", "D_PDESC_INVAL", 3, 3, "5 parts"),
    ("4294967296 { }", "D_PDESC_INVAL", 1, 1, "identifier 4294967296 exceeds maximum probe id"),
    ("0 { }", "D_PDESC_INVAL", 1, 1, "invalid probe identifier 0"),
    ("BEGIN /execname/ { }", "D_PRED_SCALAR", 1, 8, "predicate result must be of scalar type"),
    ("BEGIN /trace(1)/ { }", "D_PRED_SCALAR", 1, 8, "predicate result must be of scalar"),
    ("BEGIN /x == 1/ { trace(y); }", "D_IDENT_UNDEF", 1, 8, "failed to resolve x"),
    ("BEGIN { trace(x); }\nEND { x = 1; }", "D_IDENT_UNDEF", 1, 15, "failed to resolve x"),
    ("int;\nBEGIN { }", "D_DECL_USELESS", 1, 1, "useless declaration"),
    ("int x\nBEGIN { }", "D_SYNTAX", 2, 1, 'near "BEGIN"'),
    ("int x = 5; BEGIN { }", "D_SYNTAX", 1, 7, 'near "="'),
    ("void x; BEGIN { }", "D_DECL_VOIDOBJ", 1, 6, "cannot have void object: x"),
    ("int pid; BEGIN { }", "D_DECL_IDRED", 1, 5, "built-in identifier redeclared: pid"),
    ("int R_RAX; BEGIN { }", "D_DECL_IDRED", 1, 5, "built-in identifier redeclared: R_RAX"),
    ("int x; long x; BEGIN { }", "D_DECL_IDRED", 1, 13, "identifier redeclared: x"),
    ("int a`b; BEGIN { }", "D_DECL_SCOPE", 1, 5, "scoping operator may not be used"),
    ("struct s { int x; };", "D_EMPTY", 1, 1, "empty D program"),
    ("provider p { };", "D_EMPTY", 1, 1, "empty D program"),
    ("provider p1 { };\nBEGIN { }", "D_PROV_BADNAME", 1, 10, "may not end with a digit: p1"),
    ("typedef int t;", "D_EMPTY", 1, 1, "empty D program"),
    ("#pragma D option nope\nBEGIN { }", "D_PRAGMA_OPTSET", 1, 1, "failed to set option 'nope'"),
    ("#pragma D option bufsize=x\nBEGIN{}", "D_PRAGMA_OPTSET", 1, 1, "'bufsize' to 'x': invalid"),
    ("BEGIN {}\n#pragma D option\n", "D_PRAGMA_MALFORM", 2, 1, "malformed #pragma option"),
    ("#pragma D option a b\nBEGIN {}", "D_PRAGMA_MALFORM", 1, 1, "superfluous arguments"),
    ("#pragma D nope x\nBEGIN {}", "D_PRAGMA_INVAL", 1, 1, "invalid D pragma: nope"),
    ("#pragma D attributes x\nBEGIN {}", "D_PRAGMA_MALFORM", 1, 1, "malformed #pragma attributes"),
    ("#nope\nBEGIN {}", "D_PRAGCTL_INVAL", 1, 1, "invalid control directive: #nope"),
    ("#error no  way\nBEGIN {}", "D_PRAGERR", 1, 1, "#error: no way"),
    ("BEGIN { @a = count(); }\nEND { @a = sum(1); }", "D_AGG_REDEF", 2, 7, "count( ) : line 1"),
    ("kinst::x:%", "D_SYNTAX", 1, 10, 'near "%"'),
    ("BEGIN { trace($1); }", "D_MACRO_UNDEF", 1, 15, "macro argument $1 is not defined"),
    ("BEGIN { trace($$1); }", "D_MACRO_UNDEF", 1, 15, "macro argument $$1 is not defined"),
    ("BEGIN { trace($nope); }", "D_MACRO_UNDEF", 1, 15, "macro variable $nope is not defined"),
    ("kinst::$1: { }", "D_MACRO_UNDEF", 1, 1, "macro argument $1 is not defined"),
    ("BEGIN { trace($" + "9" * 5000 + "); }", "D_MACRO_UNDEF", 1, 15, "is not defined"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "tag", "line", "column", "message"), PROGRAMS)
def test_program(text: str, tag: str, line: int, column: int, message: str) -> None:
    found = error(text)
    assert (found.tag, found.span.line, found.span.column) == (tag, line, column), found
    assert message in found.message


def test_a_script_needs_bodies() -> None:
    found = error("BEGIN", script=True)
    assert found.tag == "D_SYNTAX"
    assert "expected predicate and/or actions following probe description" in found.message


def test_the_last_argument_must_be_used() -> None:
    found = error("BEGIN { trace($1); }", Macros(("k", "1", "two")))
    assert found.tag == "D_MACRO_UNUSED"
    assert found.message == "extraneous argument 'two' ($2 is not referenced)"
    assert found.hint == "a command goes to -c, in quotes: -c 'wc /etc/passwd'"


@pytest.mark.parametrize(
    ("argument", "tag"),
    [("99999999999999999999", "D_MACRO_OFLOW"), ("09", "D_INT_DIGIT")],
)
def test_bad_integer_arguments(argument: str, tag: str) -> None:
    assert error("BEGIN { trace($1); }", Macros(("k", argument))).tag == tag


def test_hints_name_what_would_work() -> None:
    assert "did you mean timestamp?" in str(error("BEGIN { trace(timestmp); }"))
    assert "a variable may be called count_" in error("BEGIN { count++; }").hint
    assert "a variable may be called stack_" in error("BEGIN { stack = 1; }").hint
    for name in ("stack", "ustack"):
        assert error(f"BEGIN {{ @[{name}] = count(); }}").hint == f"in D: {name}()"
    assert "@total = sum(VALUE)" in error("BEGIN { @ = stats(3); }").hint
    found = error("syscall::read:entry { trace(errno); }")
    assert found.hint == "syscall::read:return has the error with which the system call fails"
    assert error("BEGIN { trace(regs); }").hint == "regs[R_RAX] is one register"
    assert error("BEGIN { trace(args); }").hint == "args[0] is the first argument"
    assert "return(VALUE)" in error("fbt::vfs_read:return { arg0 = 1; }").hint
    assert "by its name, locals->count" in error("fbt::vfs_read:entry { trace(args.count); }").hint
    assert "kinst -l -v lists all" in error("sdt:::sched_switch { trace(args.prev_comm); }").hint
    for loop in ("for (i = 0; i < 3; i++) {}", "while (1) {}"):
        assert "D has no loops" in error(f"BEGIN {{ {loop} }}").hint
    assert "did you mean quiet?" in str(error("#pragma D option quite\nBEGIN { }"))


def test_the_caret_points_at_the_span() -> None:
    found = error("BEGIN\n{\n\ttrace(nope);\n}\n")
    assert str(found.span) == "t.d:3:8"
    assert found.caret() == "\ttrace(nope);\n\t      ^^^^"
